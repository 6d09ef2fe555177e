//! Debian packages that tests and benches need.

use std::path::Path;
use std::process::Command;

/// (a file that proves it is there, the package that brings it)
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/python3", "python3"),
    ("/usr/lib/python3/dist-packages/pip", "python3-pip"),
    ("/usr/bin/node", "nodejs"),
    ("/usr/bin/npm", "npm"),
    ("/usr/bin/curl", "curl"),
    ("/usr/bin/cc", "gcc"),
    ("/sbin/ip", "iproute2"),
    ("/usr/bin/promtool", "prometheus"),
];

/// What benches compare with.
const NEEDED_FOR_BENCHES: &[(&str, &str)] =
    &[("/usr/sbin/nginx", "nginx"), ("/usr/sbin/haproxy", "haproxy"), ("/usr/sbin/iptables", "iptables")];

/// What virtual machines are made with.
const NEEDED_FOR_GUESTS: &[(&str, &str)] = &[
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/bin/sqfstar", "squashfs-tools"),
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/xz", "xz-utils"),
    ("/bin/ps", "procps"),
    ("/usr/bin/cmp", "diffutils"),
];

/// Installs what is missing; does nothing where nothing is.
pub(crate) fn install() -> Result<(), String> {
    install_missing(NEEDED)
}

/// Installs what benches need beyond that.
pub(crate) fn install_for_benches() -> Result<(), String> {
    install_missing(NEEDED_FOR_BENCHES)
}

/// Installs what virtual machines need.
pub(crate) fn install_for_guests() -> Result<(), String> {
    install_missing(NEEDED_FOR_GUESTS)
}

fn install_missing(needed: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> =
        needed.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    apt(&["update"])?;
    let mut args = vec!["install", "--yes", "--no-install-recommends"];
    args.extend(missing);
    apt(&args)
}

fn apt(args: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get {} ended with {status}; it needs root", args.join(" "))),
        Err(error) => Err(format!("apt-get could not be started: {error}")),
    }
}
