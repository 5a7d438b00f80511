//! Capability sets (capabilities(7)).

use nix::errno::Errno;
use nix::libc;

/// The highest capability number asked about; newer kernels refuse unknown ones, which is then the end of the list.
pub(crate) const LAST: u32 = 63;

/// The three sets of a process that capset(2) changes, as bit sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    /// Effective.
    pub(crate) effective: u64,
    /// Permitted.
    pub(crate) permitted: u64,
    /// Inheritable.
    pub(crate) inheritable: u64,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
const VERSION_3: u32 = 0x2008_0522;

#[allow(clippy::cast_possible_truncation)] // the low and the high half, on purpose
fn halves(set: u64) -> [u32; 2] {
    [set as u32, (set >> 32) as u32]
}

/// The sets of this process.
pub(crate) fn get() -> nix::Result<Sets> {
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: both pointers are to live values of the layout that version 3 asks for, for the time of the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    Errno::result(result)?;
    let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(Sets {
        effective: whole(data[0].effective, data[1].effective),
        permitted: whole(data[0].permitted, data[1].permitted),
        inheritable: whole(data[0].inheritable, data[1].inheritable),
    })
}

/// Sets the sets of this process.
pub(crate) fn set(sets: Sets) -> nix::Result<()> {
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let (effective, permitted, inheritable) = (
        halves(sets.effective),
        halves(sets.permitted),
        halves(sets.inheritable),
    );
    let data = [0, 1].map(|half| Data {
        effective: effective[half],
        permitted: permitted[half],
        inheritable: inheritable[half],
    });
    // SAFETY: both pointers are to live values of the layout that version 3 asks for, for the time of the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) };
    Errno::result(result).map(drop)
}

/// The bounding set of this process.
pub(crate) fn bounding() -> u64 {
    let mut set = 0;
    for capability in 0..=LAST {
        let number = libc::c_ulong::from(capability);
        // SAFETY: the request reads a number and touches no memory of ours. It fails beyond the last capability.
        match unsafe { libc::prctl(libc::PR_CAPBSET_READ, number, 0, 0, 0) } {
            0 => {}
            1 => set |= 1 << capability,
            _ => break,
        }
    }
    set
}

/// Takes these capabilities out of the bounding set.
pub(crate) fn unbound(set: u64) -> nix::Result<()> {
    for capability in (0..=LAST).filter(|capability| set & (1 << capability) != 0) {
        let number = libc::c_ulong::from(capability);
        // SAFETY: the request takes a number and touches no memory of ours.
        Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) })?;
    }
    Ok(())
}

/// Empties the ambient set. A kernel that has none has nothing to empty.
pub(crate) fn clear_ambient() -> nix::Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    // SAFETY: this request reads numbers and touches no memory of ours.
    match Errno::result(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, clear, 0, 0, 0) }) {
        Ok(_) | Err(Errno::EINVAL) => Ok(()),
        Err(error) => Err(error),
    }
}
