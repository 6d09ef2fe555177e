//! The virtual machine: boots, passes on what the guest says, and is gone at the end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What the guest says last, before the number of steps that failed.
const END: &str = "guest: failed steps:";
/// How long a guest that has said so may take to switch itself off.
const OFF: Duration = Duration::from_secs(30);
/// Memory and processors; what does not fit a small machine would be of no use.
const SIZE: [&str; 4] = ["-m", "3072", "-smp", "2"];

/// What is booted.
#[derive(Debug)]
pub(super) struct Guest<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    pub(super) disk: &'a Path,
}

/// Boots and waits for the end; gives the number of steps that failed.
pub(super) fn boot(guest: &Guest<'_>, accel: &str, append: &str, limit: Duration) -> Result<u32, String> {
    let mut qemu = Qemu::start(guest, accel, append)?;
    let console = qemu.0.stdout.take().ok_or("QEMU has no console")?;
    let (lines, said) = mpsc::channel();
    // Ends with QEMU, whose end closes the console.
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });
    let mut deadline = Instant::now() + limit;
    let mut failed = None;
    let result = loop {
        match said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                eprintln!("{line}");
                if let Some(number) = line.strip_prefix(END) {
                    failed = number.trim().parse().ok();
                    deadline = deadline.min(Instant::now() + OFF);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) if failed.is_none() => {
                break Err(format!("the guest has not ended after {} s", limit.as_secs()));
            }
            Err(_) => break failed.ok_or_else(|| "the guest ended without saying how".to_owned()),
        }
    };
    drop(qemu);
    let _ = reader.join();
    result
}

/// A running QEMU; killed when dropped.
struct Qemu(Child);

impl Qemu {
    fn start(guest: &Guest<'_>, accel: &str, append: &str) -> Result<Self, String> {
        // QEMU 7 emulates `cmpxchg16b` wrongly now and then, and newer kernels stumble over it where they know of it.
        let processor = if accel == "kvm" { "host" } else { "max,cx16=off" };
        Command::new("qemu-system-x86_64")
            .args(["-accel", accel, "-cpu", processor, "-machine", "q35"])
            .args(SIZE)
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"])
            .arg("-kernel")
            .arg(guest.kernel)
            .arg("-initrd")
            .arg(guest.initrd)
            .arg("-append")
            .arg(format!("console=ttyS0 panic=-1 quiet loglevel=3 {append}"))
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,readonly=on", guest.disk.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map(Qemu)
            .map_err(|error| format!("qemu-system-x86_64: {error}"))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It has ended by itself when it cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
