//! Raw mode of the local terminal, undone on every way out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

use crate::error::Error;

/// The terminal and the mode to give back to it, while raw mode is on. Global because a panic's hook has no other way to it.
static BEFORE: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// The terminal at stdin passes every key on and shows nothing by itself, as long as this lives. Ends of the process that
/// run destructors restore the mode, panics before they print; signals are handled by [`super::Events`] and end so too.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// `None`: stdin is no terminal.
    pub(crate) fn enter() -> Result<Option<Self>, Error> {
        Self::enter_at(std::io::stdin().as_fd())
    }

    fn enter_at(terminal: impl AsFd) -> Result<Option<Self>, Error> {
        let terminal = terminal.as_fd();
        if !isatty(terminal) {
            return Ok(None);
        }
        let failed =
            |operation| move |source: std::io::Error| Error::Terminal { operation, source };
        let before =
            tcgetattr(terminal).map_err(|errno| failed("read the mode of")(errno.into()))?;
        let kept = terminal
            .try_clone_to_owned()
            .map_err(failed("keep a handle of"))?;
        restore_before_panics_print();
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((kept, before));
        let guard = Self(());
        tcsetattr(terminal, OptionalActions::Now, &raw)
            .map_err(|errno| failed("set raw mode of")(errno.into()))?;
        Ok(Some(guard))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether the terminal is in raw mode, so that a line must end with a carriage return too.
pub(super) fn is_on() -> bool {
    BEFORE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some()
}

fn restore() {
    // Poisoned: somebody panicked while holding it; what is in it is whole.
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((terminal, before)) = before {
        // The terminal may be gone, and then has no mode to restore.
        tcsetattr(terminal, OptionalActions::Now, &before).ok();
    }
}

fn restore_before_panics_print() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            print(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use rustix::termios::LocalModes;

    use super::*;

    #[test]
    fn the_mode_is_restored_at_the_end_and_by_a_panic() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let is_cooked = || {
            let modes = tcgetattr(&pty.slave).unwrap().local_modes;
            modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
        };
        assert!(is_cooked());
        let guard = RawMode::enter_at(&pty.slave).unwrap().unwrap();
        assert!(!is_cooked() && is_on());
        drop(guard);
        assert!(is_cooked() && !is_on());

        let terminal = pty.slave.try_clone().unwrap();
        std::thread::spawn(move || {
            let guard = RawMode::enter_at(&terminal).unwrap();
            // So that only the hook can restore it.
            let _kept = std::mem::ManuallyDrop::new(guard);
            panic!("on purpose");
        })
        .join()
        .unwrap_err();
        assert!(is_cooked() && !is_on());

        assert!(
            RawMode::enter_at(std::fs::File::open("/dev/null").unwrap())
                .unwrap()
                .is_none()
        );
    }
}
