//! What may be written on the command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures what Fanfare costs, beside its peers in the same run. Run it as `cargo xtask bench`, in release.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask bench", no_binary_name = true)]
pub(crate) struct Args {
    /// Which to run [default: all].
    #[arg(value_enum)]
    pub(crate) names: Vec<Name>,
    /// A smoke test of the benches themselves: little is measured, so that all of them take less than a minute.
    #[arg(long, conflicts_with = "write")]
    pub(crate) quick: bool,
    /// Replace the sections of these benches in BENCHMARKS.md, and their plots in docs/plots.
    #[arg(long)]
    pub(crate) write: bool,
    /// Rounds, in which what is compared takes turns in random order. All benches take about
    /// 25 minutes with 9, 15 with 3, 6 with 1.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Decides the order within rounds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where the JSON goes [default: `bench` in the target directory].
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
    /// Run the benches of this build and of the `fanfare-bench` at this path in turn, and print ratios; `cargo xtask bench
    /// --compare REV` builds that of a revision.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "write", hide_short_help = true)]
    pub(crate) compare_with: Option<PathBuf>,
    /// What that build is of.
    #[arg(long, value_name = "REV", requires = "compare_with", hide_short_help = true)]
    pub(crate) compare_commit: Option<String>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// A request to a running function, beside nginx and HAProxy.
    Warm,
    /// The same by HTTP/2, all over one connection.
    Http2,
    /// Where the time of a request to a running function goes.
    Hops,
    /// A request to a function at zero, beside a bare sandbox.
    Cold,
    /// Many requests at once to a function at zero, beside the bare runtime.
    Surge,
    /// Durable registrations, and a start that finds them.
    Register,
    /// Memory of functions, sandboxes, connections and waiting requests.
    Memory,
    /// Cold starts without sandboxes: what deciding costs.
    Control,
    /// Cold starts without sandboxes at a rate, to saturation.
    Sweep,
    /// Steps of load on one function, and a surge that comes and goes.
    Steps,
    /// The same without what makes it cheap.
    Ablations,
}

impl Name {
    /// What of it there is to find on the page of results.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Name::Warm => "a warm request over 1, 32 and 256 connections, beside nginx and HAProxy",
            Name::Http2 => "HTTP/2 with all load on one connection, beside nginx and HAProxy",
            Name::Hops => "a warm request hop by hop, beside echoes between the same CPUs",
            Name::Cold => {
                "cold starts of a compiled server, Python (with and without a zygote) and Node.js, beside a bare sandbox and \
                 bare interpreters; 8 at once; for seconds on end"
            }
            Name::Surge => "200 requests at once to a function at zero, beside the bare runtime",
            Name::Register => "registrations one by one and 64 at once; a start with 10,000 functions",
            Name::Memory => "memory per function, sandbox, connection and waiting request",
            Name::Control => {
                "cold starts without sandboxes: the most, and their CPU, on 1, 1,000 and 5,000 nodes"
            }
            Name::Sweep => {
                "cold starts at a rate, to saturation: latency and CPU on 100, 1,000 and 5,000 nodes, of 100 and 10,000 \
                 functions"
            }
            Name::Steps => {
                "steps of load: throughput against connections with 1 to 10 sandboxes and by demand; a timeline of 0 to 200 and \
                 back"
            }
            Name::Ablations => {
                "ablations: state of sandboxes persisted, unary calls in place of streams, no pool of network namespaces, NAT by \
                 iptables (no zygote: `cold`)"
            }
        }
    }

    /// As it is written.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Name::Warm => "warm",
            Name::Http2 => "http2",
            Name::Hops => "hops",
            Name::Cold => "cold",
            Name::Surge => "surge",
            Name::Register => "register",
            Name::Memory => "memory",
            Name::Control => "control",
            Name::Sweep => "sweep",
            Name::Steps => "steps",
            Name::Ablations => "ablations",
        }
    }
}

impl Args {
    /// The command that makes the numbers of one bench.
    pub(crate) fn repeat(&self, name: Name) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        let compare =
            self.compare_commit.as_ref().map(|commit| format!(" --compare {commit}")).unwrap_or_default();
        let name = name.word();
        format!("cargo xtask bench {name}{quick}{compare} --rounds {} --seed {}", self.rounds, self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        <Args as CommandFactory>::command().debug_assert();
        let args = Args::parse_from(["warm", "cold", "--seed", "7"]);
        assert_eq!(args.names, [Name::Warm, Name::Cold]);
        assert_eq!(args.repeat(Name::Cold), "cargo xtask bench cold --rounds 9 --seed 7");
        for name in Name::value_variants() {
            assert_eq!(name.to_possible_value().unwrap().get_name(), name.word());
            assert!(!name.what().contains(['|', '\n']), "a cell of a table: {}", name.what());
        }
        assert!(
            Args::try_parse_from(["--quick", "--write"]).is_err(),
            "a smoke test's numbers are not written down"
        );
    }
}
