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
    /// Replace the tables of these benches in BENCHMARKS.md.
    #[arg(long)]
    pub(crate) write: bool,
    /// Rounds, in which what is compared takes turns in random order.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Decides the order within rounds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where the JSON goes [default: `bench` in the target directory].
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// A request to a running function, beside nginx.
    Warm,
    /// A request to a function at zero, beside a bare sandbox.
    Cold,
    /// Many requests at once to a function at zero, beside the bare runtime.
    Surge,
    /// Durable registrations.
    Register,
    /// Memory of registered functions.
    Memory,
    /// Cold starts without sandboxes: what deciding costs.
    Control,
}

impl Args {
    /// The command that makes the numbers of one bench.
    pub(crate) fn repeat(&self, name: Name) -> String {
        let name = name.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let quick = if self.quick { " --quick" } else { "" };
        format!("cargo xtask bench {name}{quick} --rounds {} --seed {}", self.rounds, self.seed)
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
        assert!(
            Args::try_parse_from(["--quick", "--write"]).is_err(),
            "a smoke test's numbers are not written down"
        );
    }
}
