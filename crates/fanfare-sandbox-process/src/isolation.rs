//! What is enforced on this machine, and what is not and why.

use std::fmt;

use crate::cgroup::{CgroupVersion, Cgroups};
use crate::fdmsg;
use crate::launcher::protocol::Powers;
use crate::procfs;

/// The version of Landlock that confines signals and abstract sockets.
const LANDLOCK_SCOPES: i32 = 6;
/// The first that can be used without keeping files from being moved between directories.
const LANDLOCK_REFER: i32 = 2;

const CGROUP_FOR_ROOT: &str = "mount cgroup v2, writable and with this controller, at /sys/fs/cgroup";
const CGROUP_FOR_USERS: &str = "run as root, or in a cgroup v2 that is delegated to this user: \
     systemd-run --user --scope -p Delegate=yes fanfare up";

/// One promise of isolation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// What it is.
    pub name: &'static str,
    /// Whether it is enforced.
    pub enforced: bool,
    /// How, or why not.
    pub detail: String,
    /// What would have it enforced; empty where it is.
    pub fix: &'static str,
}

/// What isolates the sandboxes of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// Whether the daemon is root.
    pub root: bool,
    /// Which cgroup hierarchies hold the controllers.
    pub cgroups: CgroupVersion,
    /// Each promise.
    pub mechanisms: Vec<Mechanism>,
}

impl Isolation {
    /// The report for a started runtime.
    pub(crate) fn new(root: bool, cgroups: &Cgroups, powers: &Powers) -> Self {
        let on = |name, detail: &str| Mechanism { name, enforced: true, detail: detail.to_owned(), fix: "" };
        let mut mechanisms = vec![
            on("namespaces", "of mounts and IPC, each its own; of processes, host name and network likewise, but one for all Python sandboxes of a revision"),
            on(
                "root directory",
                &match &powers.devices_bound {
                    None => "read-only, synthetic /etc, own device nodes".to_owned(),
                    Some(why) => format!("read-only, synthetic /etc, the host's device nodes ({why})"),
                },
            ),
            on("temporary directory", "in memory, with a size limit, not shared"),
            on(
                "network",
                "a loopback interface only; Python sandboxes of one revision share it, others have their own",
            ),
            on("capabilities", "none, none to gain, no new privileges"),
            on("system calls", "an allow-list; others fail with EPERM"),
            match fdmsg::descriptors_are_refused() {
                true => on("descriptors", "none can be sent to the daemon"),
                false => Mechanism {
                    name: "descriptors",
                    enforced: false,
                    detail: "this kernel cannot refuse those sent to the daemon (Linux 6.16 can); instead sandboxes \
                             may not make sockets linger"
                        .to_owned(),
                    fix: "a kernel that is Linux 6.16 or newer",
                },
            },
            match powers.landlock {
                LANDLOCK_SCOPES.. => on("siblings", "Python sandboxes of one revision cannot see or signal each other"),
                version => Mechanism {
                    name: "siblings",
                    enforced: false,
                    detail: format!(
                        "Python sandboxes of one revision can {} each other and their template, and connect to each other's sockets with \
                         abstract names (Linux 6.12 could keep them from it)",
                        if version >= LANDLOCK_REFER { "signal" } else { "signal and inspect" }
                    ),
                    fix: "a kernel that is Linux 6.12 or newer, with Landlock among its security modules",
                },
            },
            match procfs::keeps_oom_scores() {
                true => on("out of memory", "the machine ends sandboxes before anything else, which none can undo"),
                false => Mechanism {
                    name: "out of memory",
                    enforced: false,
                    detail: "a sandbox can undo that a machine without memory ends it before anything else: the daemon \
                             lacks CAP_SYS_RESOURCE"
                        .to_owned(),
                    fix: "run as root with CAP_SYS_RESOURCE, outside of a user namespace",
                },
            },
            match root {
                true => on("user", "an unprivileged user per revision"),
                false => Mechanism {
                    name: "user",
                    enforced: false,
                    detail: "all sandboxes run as the daemon's user: a user per revision needs root"
                        .to_owned(),
                    fix: "run as root",
                },
            },
        ];
        for (name, controller, what) in [
            ("memory limit", "memory", "per sandbox"),
            ("process limit", "pids", "per sandbox"),
            ("CPU limit", "cpu", "per sandbox, where the function sets one"),
        ] {
            mechanisms.push(match cgroups.why_missing(controller) {
                None => Mechanism {
                    name,
                    enforced: true,
                    detail: format!("{what}, by cgroup {}", cgroups.version()),
                    fix: "",
                },
                Some(why) => {
                    let instead = match controller {
                        "memory" => "; instead each process may ask for twice the limit and 256 MiB",
                        _ => "",
                    };
                    let detail = format!("{controller} controller: {why}{instead}");
                    let fix = if root { CGROUP_FOR_ROOT } else { CGROUP_FOR_USERS };
                    Mechanism { name, enforced: false, detail, fix }
                }
            });
        }
        Isolation { root, cgroups: cgroups.version(), mechanisms }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "user: {}, cgroups: {}", if self.root { "root" } else { "ordinary" }, self.cgroups)?;
        for m in &self.mechanisms {
            writeln!(f, "{} {}: {}", if m.enforced { "on " } else { "OFF" }, m.name, m.detail)?;
        }
        Ok(())
    }
}
