//! User namespaces: a launcher of an ordinary user's is in one, and so is each template.
//!
//! A template must be able to give its children mount and IPC namespaces of their own, after it has run user code, for
//! they are copies of it. For this it keeps one capability, `CAP_SYS_ADMIN`, that counts in its user namespace only,
//! and its filter lets it do two things with it: leave its mount and IPC namespaces for new ones, and mount a file
//! system that it was given. Everything else that the capability is for (`mount`, `setns`, `pivot_root`, further
//! namespaces) the filter denies it as it does all. Its children give the capability up; that they have is checked when
//! they say that they are ready.

use std::io;

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::sys::{self, SingleThreaded};

/// Becomes the same user with all capabilities inside a namespace of its own.
pub(crate) fn enter(proof: &SingleThreaded) -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sys::unshare(proof, libc::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// What keeps ordinary users from these namespaces is a setting, to which the error alone would not lead.
pub(crate) fn forbidden(error: &io::Error) -> io::Error {
    let text = format!(
        "ordinary users may not make user namespaces here, or have no rights in them ({error}); see the settings \
         user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
    );
    io::Error::new(error.kind(), text)
}

/// Enters a namespace, keeps what a template needs there, and has programs inherit it.
pub(crate) fn enter_as_template(proof: &SingleThreaded) -> io::Result<()> {
    let kept = CapabilitySet::SYS_ADMIN;
    // Where making such a namespace needs it, as on hosts that keep ordinary users from it. It ends with `enter`.
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    // A change of user has made its files in /proc root's.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    enter(proof)?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(rustix::thread::configure_capability_in_ambient_set(kept, true)?)
}

/// Gives all capabilities up.
pub(crate) fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, none)
}
