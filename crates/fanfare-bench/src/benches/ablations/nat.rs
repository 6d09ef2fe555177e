//! Rules of iptables for each sandbox, in place of a socket that is handed in.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bare;
use crate::bench::Bench;
use crate::error::{Context, Error, Result};
use crate::report::Report;
use crate::stats::Summary;

const IPTABLES: &str = "/usr/sbin/iptables";
const RESTORE: &str = "/usr/sbin/iptables-restore";
/// Where the host's ports begin that lead to sandboxes.
const PORT_FIRST: usize = 10_000;

/// How a sandbox becomes reachable, and is no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// A listening unix socket, made and removed.
    Socket,
    /// One rule at a time, each by a program of its own.
    Rules,
    /// All rules of a sandbox by one program.
    Batched,
}

const TURNS: [Turn; 3] = [Turn::Socket, Turn::Rules, Turn::Batched];

impl Turn {
    fn describe(self) -> &'static str {
        match self {
            Turn::Socket => "listening socket",
            Turn::Rules => "iptables, a rule at a time",
            Turn::Batched => "iptables-restore, a sandbox at a time",
        }
    }
}

pub(super) fn run(bench: &mut Bench, report: &mut Report) -> Result<()> {
    let (there, times): (&[usize], usize) = bench.either((&[0, 100, 1_000], 5), (&[0, 10], 1));
    report.say(format!(
        "NAT: in a network namespace of its own, with the rules of so many sandboxes there already, a port of the host is led \
         to one more sandbox by iptables ({}): DNAT for what comes in and for what the host sends, a check that masquerading \
         is on, and the policy of forwarding; and is led there no longer. Beside it, what is done here in its place: a listening \
         unix socket that is made and removed. Interfaces, bridges and addresses, which NAT needs as well, are not counted.",
        version()
    ));
    let rounds = bench.rounds.min(3);
    let mut orders = Vec::new();
    for _ in 0..rounds * there.len() {
        orders.push(bench.shuffled(&TURNS));
    }
    let (socket, there_of) = (bench.dir().join("reach"), there.to_vec());
    // Only this thread, and what it starts, is in the namespace.
    let measured = std::thread::spawn(move || measure(&there_of, times, &orders, &socket));
    let measured = measured.join().map_err(|_| Error::new("the measurement has panicked"))?;
    for (there, found) in there.iter().zip(measured.context("NAT by iptables")?) {
        let group = format!("reaching one more sandbox beside {there}");
        for turn in TURNS {
            let of = |(of, ms): &(Turn, f64)| (*of == turn).then_some(*ms);
            let samples: Vec<f64> = found.iter().filter_map(of).collect();
            report.measure(&group, turn.describe(), "ms", &samples)?;
        }
        let median = |turn: Turn| {
            let samples: Vec<f64> = found.iter().filter(|(of, _)| *of == turn).map(|(_, ms)| *ms).collect();
            Summary::of(&samples).map_or(f64::NAN, |summary| summary.p50)
        };
        report.ratio(
            &group,
            "iptables, a rule at a time / socket, medians",
            &[median(Turn::Rules)],
            &[median(Turn::Socket)],
        )?;
    }
    Ok(())
}

/// Milliseconds of each turn, a list for each number of sandboxes that are there.
fn measure(
    there: &[usize],
    times: usize,
    orders: &[Vec<Turn>],
    socket: &Path,
) -> Result<Vec<Vec<(Turn, f64)>>> {
    bare::own_network().context("make a network namespace")?;
    iptables(&["-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"])?;
    let rounds = orders.len() / there.len();
    let mut found = Vec::new();
    let mut orders = orders.iter();
    let mut made = 0;
    for there in there {
        restore(&(made..*there).map(|n| rules("-A", n)).collect::<String>())?;
        made = *there;
        let mut of_this = Vec::new();
        for order in orders.by_ref().take(rounds) {
            for turn in order {
                for _ in 0..times {
                    let took = match turn {
                        Turn::Socket => by_socket(socket)?,
                        Turn::Rules => by_rules(made)?,
                        Turn::Batched => by_batch(made)?,
                    };
                    of_this.push((*turn, took.as_secs_f64() * 1e3));
                }
            }
        }
        found.push(of_this);
    }
    Ok(found)
}

fn by_socket(path: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let listener = UnixListener::bind(path).context(path.display())?;
    drop(listener);
    std::fs::remove_file(path).context(path.display())?;
    Ok(begun.elapsed())
}

fn by_rules(sandbox: usize) -> Result<Duration> {
    let [inwards, outwards] = rule(sandbox);
    let begun = Instant::now();
    for (chain, rule) in [("PREROUTING", &inwards), ("OUTPUT", &outwards)] {
        iptables(&[&["-t", "nat", "-A", chain], &words(rule)[..]].concat())?;
    }
    iptables(&["-t", "nat", "-C", "POSTROUTING", "-j", "MASQUERADE"])?;
    iptables(&["-P", "FORWARD", "ACCEPT"])?;
    for (chain, rule) in [("PREROUTING", &inwards), ("OUTPUT", &outwards)] {
        iptables(&[&["-t", "nat", "-D", chain], &words(rule)[..]].concat())?;
    }
    Ok(begun.elapsed())
}

fn by_batch(sandbox: usize) -> Result<Duration> {
    let begun = Instant::now();
    restore(&rules("-A", sandbox))?;
    restore(&rules("-D", sandbox))?;
    Ok(begun.elapsed())
}

/// What leads a port to a sandbox: for what comes in, and for what the host itself sends.
fn rule(sandbox: usize) -> [String; 2] {
    let (high, low) = (sandbox / 250, sandbox % 250 + 2);
    let port = PORT_FIRST + sandbox;
    let rule = format!("-p tcp -d 10.0.0.1 --dport {port} -j DNAT --to-destination 100.22.{high}.{low}:80");
    [rule.clone(), rule]
}

/// The same for `iptables-restore`.
fn rules(verb: &str, sandbox: usize) -> String {
    let mut text = String::new();
    for (chain, rule) in ["PREROUTING", "OUTPUT"].into_iter().zip(rule(sandbox)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{verb} {chain} {rule}");
    }
    text
}

fn words(rule: &str) -> Vec<&str> {
    rule.split(' ').collect()
}

fn iptables(args: &[&str]) -> Result<()> {
    finish(Command::new(IPTABLES).arg("-w").args(args), "")
}

fn restore(rules: &str) -> Result<()> {
    finish(Command::new(RESTORE).args(["-w", "--noflush"]), &format!("*nat\n{rules}COMMIT\n"))
}

fn finish(command: &mut Command, input: &str) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    if !program.exists() {
        let what = format!("{} is missing; `cargo xtask bench` installs it, as root", program.display());
        return Err(Error::new(what));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context(program.display())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).context(program.display())?;
    }
    let output = child.wait_with_output().context(program.display())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        ))),
    }
}

/// As it calls itself.
fn version() -> String {
    let output = Command::new(IPTABLES).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "iptables".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_made_and_removed_in_a_namespace_of_their_own() {
        if !Path::new(IPTABLES).exists() || !rustix::process::geteuid().is_root() {
            eprintln!("skipped: {IPTABLES} is missing, or this is not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (found, left) = std::thread::spawn(move || {
            let orders = vec![TURNS.to_vec(); 2];
            let found = measure(&[0, 3], 1, &orders, &path).unwrap();
            let listed = Command::new(IPTABLES).args(["-t", "nat", "-S"]).output().unwrap();
            (found, String::from_utf8(listed.stdout).unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        assert!(found.iter().flatten().all(|(_, ms)| *ms > 0.0));
        assert_eq!(left.matches("DNAT").count(), 6, "three sandboxes' rules are there still: {left}");
    }

    #[test]
    fn no_two_sandboxes_share_a_rule() {
        let all: std::collections::BTreeSet<String> = (0..5_000).map(|n| rules("-A", n)).collect();
        assert_eq!(all.len(), 5_000);
    }
}
