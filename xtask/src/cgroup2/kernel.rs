//! Debian's kernel, out of its package, without installing it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Depends on the newest kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// What is booted.
    pub(super) image: PathBuf,
    /// Its modules.
    pub(super) modules: PathBuf,
}

/// Downloads and unpacks the kernel of a suite, or of those that this machine installs from, unless it is there.
pub(super) fn fetch(dir: &Path, suite: Option<&str>) -> Result<Kernel, String> {
    let apt = Apt::new(dir, suite)?;
    let package = apt.newest()?;
    let unpacked = dir.join(&package);
    if !unpacked.join("boot").exists() {
        eprintln!("downloading {package}");
        // In a directory of its own until it is whole.
        let making = dir.join(format!("{package}.{}", std::process::id()));
        fs::create_dir_all(&making).map_err(|e| format!("{}: {e}", making.display()))?;
        let made = apt.unpack(&package, &making).and_then(|()| {
            fs::rename(&making, &unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))
        });
        let _ = fs::remove_dir_all(&making);
        made?;
    }
    let found = |dir: &str, prefix: &str| {
        let dir = unpacked.join(dir);
        let entries = fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        paths
            .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix)))
            .ok_or_else(|| format!("{}: no {prefix}", dir.display()))
    };
    Ok(Kernel { image: found("boot", "vmlinuz-")?, modules: found("lib/modules", "")? })
}

/// Ways to ask apt, of one suite alone or of what this machine is set to.
struct Apt(Vec<String>);

impl Apt {
    fn new(dir: &Path, suite: Option<&str>) -> Result<Self, String> {
        let Some(suite) = suite else { return Ok(Apt(Vec::new())) };
        if !suite.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(format!("--suite {suite}: no suite has such a name"));
        }
        let (list, lists) = (dir.join(format!("{suite}.list")), dir.join(format!("{suite}.lists")));
        fs::create_dir_all(lists.join("partial")).map_err(|e| format!("{}: {e}", lists.display()))?;
        fs::write(&list, format!("deb http://deb.debian.org/debian {suite} main\n"))
            .map_err(|e| format!("{}: {e}", list.display()))?;
        let settings = [
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::Cache={}", lists.display()),
        ];
        let apt = Apt(settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect());
        apt.run("apt-get", &["--quiet=2", "update"], dir)?;
        Ok(apt)
    }

    fn run(&self, program: &str, args: &[&str], dir: &Path) -> Result<String, String> {
        let output = Command::new(program)
            .args(&self.0)
            .args(args)
            .current_dir(dir)
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!(
                "{program} {} ended with {}: {}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// The package of the newest kernel.
    fn newest(&self) -> Result<String, String> {
        let text = self.run("apt-cache", &["depends", "--important", PACKAGE], Path::new("/"))?;
        let depends = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
        depends.map(str::to_owned).ok_or_else(|| format!("apt knows no {PACKAGE}"))
    }

    fn unpack(&self, package: &str, into: &Path) -> Result<(), String> {
        self.run("apt-get", &["--quiet=2", "download", package], into)?;
        let entries = fs::read_dir(into).map_err(|e| format!("{}: {e}", into.display()))?;
        let deb = entries
            .filter_map(Result::ok)
            .map(|e| e.path())
            .find(|p| p.extension().is_some_and(|e| e == "deb"));
        let deb = deb.ok_or_else(|| format!("apt-get downloaded no {package}"))?;
        crate::run("dpkg-deb", &["--extract", &deb.display().to_string(), &into.display().to_string()])?;
        fs::remove_file(&deb).map_err(|e| format!("{}: {e}", deb.display()))
    }
}
