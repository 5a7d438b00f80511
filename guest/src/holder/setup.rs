//! What is done once, before the first session: the host name, and what sessions can write to.

use cloche_proto::frame::{ReadOnlyRoot, Setup, SetupDone};
use nix::errno::Errno;

use super::Holder;
use crate::hostname;
use crate::letter;
use crate::wire::Order;

/// What sessions can write to.
#[derive(Default)]
pub(super) enum Root {
    /// All that their users may.
    #[default]
    Writable,
    /// Soon these paths alone: the spawner was told, and has not answered.
    Ordered(ReadOnlyRoot),
    /// These paths alone.
    ReadOnly(ReadOnlyRoot),
}

impl Holder {
    pub(super) fn set_up(&mut self, setup: Setup) {
        if self.hostname.as_deref() != Some(&setup.hostname) {
            if let Err(error) = hostname::set(&setup.hostname) {
                self.has_set_up(error.to_string(), String::new());
                return;
            }
            self.hostname = Some(setup.hostname);
        }
        match (&self.root, setup.read_only_root) {
            (Root::Writable, Some(asked)) => self.order_root(asked),
            // Its notice answers this one, too.
            (Root::Ordered(ordered), Some(asked)) if *ordered == asked => {}
            (Root::Writable, None) => self.has_set_up(String::new(), String::new()),
            (Root::ReadOnly(done), Some(asked)) if *done == asked => {
                self.has_set_up(String::new(), String::new());
            }
            (Root::Ordered(_) | Root::ReadOnly(_), Some(_) | None) => {
                let error =
                    "what can be written is decided already, and is not what is asked for now";
                self.answer(error.to_owned(), String::new());
            }
        }
    }

    fn has_set_up(&mut self, error: String, path: String) {
        // Nothing may run in a sandbox that is not what was asked for.
        self.fault = Some(error.clone()).filter(|error| !error.is_empty());
        self.answer(error, path);
    }

    fn answer(&mut self, error: String, path: String) {
        let read_only_root = matches!(self.root, Root::ReadOnly(_));
        self.core.set_up(SetupDone {
            error,
            path,
            read_only_root,
        });
    }

    /// The spawner does it: it sees what the sessions see. The sessions that are ordered after this come after it.
    fn order_root(&mut self, asked: ReadOnlyRoot) {
        match letter::write(&asked) {
            Ok(letter) => {
                self.order(Order::ReadOnlyRoot, vec![letter]);
                self.root = Root::Ordered(asked);
            }
            Err(error) => {
                let why = error.desc().to_lowercase();
                self.has_set_up(format!("making the root read-only: {why}"), String::new());
            }
        }
    }

    /// What the spawner says of the root; the guest may say so as well, when it is too late.
    pub(super) fn hear_of_root(&mut self, error: i32, path: i32) {
        let Root::Ordered(asked) = &self.root else {
            return;
        };
        let asked = asked.clone();
        if error == 0 {
            self.root = Root::ReadOnly(asked);
            self.has_set_up(String::new(), String::new());
            return;
        }
        self.root = Root::Writable;
        let error = Errno::from_raw(error);
        let why = error.desc().to_lowercase();
        // By what the image has there, and not for want of room or by a kernel that cannot.
        let is_paths = matches!(
            error,
            Errno::ENOTDIR | Errno::ENOENT | Errno::ENAMETOOLONG | Errno::ELOOP | Errno::EINVAL
        );
        let at_fault = usize::try_from(path)
            .ok()
            .and_then(|path| asked.writable.get(path));
        let (why, path) = match at_fault {
            Some(path) if is_paths => (format!("keeping {path} writable: {why}"), path.clone()),
            Some(path) => (format!("keeping {path} writable: {why}"), String::new()),
            None => (format!("making the root read-only: {why}"), String::new()),
        };
        self.has_set_up(why, path);
    }
}
