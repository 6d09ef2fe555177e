//! Numbers of the command line: what is wrong with one is said with its limits.

use clap::Command;

/// A whole number from `MIN` to `MAX`.
///
/// # Errors
/// What is allowed, for everything else, however long it is.
pub(crate) fn whole<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (MIN..=MAX).contains(number));
    number.ok_or_else(|| format!("give a whole number from {MIN} to {MAX}"))
}

/// A number from `min` to `max`.
///
/// # Errors
/// What is allowed, for everything else.
pub(crate) fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("give a number from {min} to {max}"))
}

/// `command` with negative numbers taken as values: so they are refused with the limits of what they were given to, and
/// not as flags that nobody has heard of.
pub(crate) fn taking_negative_numbers(command: Command) -> Command {
    let takes = |argument: &clap::Arg| argument.get_action().takes_values() && !argument.is_last_set();
    command
        .mut_args(|argument| if takes(&argument) { argument.allow_negative_numbers(true) } else { argument })
        .mut_subcommands(taking_negative_numbers)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// What `fanfare LINE` is told.
    fn refused(line: &[&str]) -> String {
        let line = std::iter::once("fanfare").chain(line.iter().copied());
        taking_negative_numbers(Args::command()).try_get_matches_from(line).unwrap_err().to_string()
    }

    #[test]
    fn a_number_that_is_refused_is_told_its_flag_its_limits_and_itself() {
        let cases = [
            (&["deploy", "x", "--concurrency", "99999999999999"][..], "--concurrency", "1 to 1000"),
            (&["deploy", "x", "--concurrency", "-1"], "--concurrency", "1 to 1000"),
            (&["deploy", "x", "--concurrency=1.5"], "--concurrency", "1 to 1000"),
            (&["update", "x", "--max", "0"], "--max", "1 to 100000"),
            (&["update", "x", "--min", "-3"], "--min", "0 to 100000"),
            (&["update", "x", "--scale", "100001"], "--scale", "0 to 100000"),
            (&["update", "x", "--initial", "many"], "--initial", "0 to 100000"),
            (&["update", "x", "--pids", "3"], "--pids", "4 to 32768"),
            (&["update", "x", "--queue-limit", "-1"], "--queue-limit", "1 to 1000000"),
            (&["update", "x", "--handler-processes", "0"], "--handler-processes", "1 to 1000"),
            (&["update", "x", "--target", "-0.5"], "--target", "0.01 to 1000000"),
            (&["update", "x", "--target", "NaN"], "--target", "0.01 to 1000000"),
            (&["logs", "x", "--tail", "-1"], "--tail", "0 to 10000"),
            (&["data-plane", "--threads", "99999"], "--threads", "0 to 1024"),
            (&["node", "--emulate", "-7"], "--emulate", "1 to 20000"),
            (&["node", "--emulate", "1", "--seed", "-7"], "--seed", "0 to 18446744073709551615"),
            (&["demo", "--surge", "0"], "--surge", "1 to 2000"),
            (&["up", "--cpus", "0"], "--cpus", "0.001 to 65536"),
            (&["up", "--cpus", "1e9"], "--cpus", "0.001 to 65536"),
            (&["up", "--cpus", "65537"], "--cpus", "0.001 to 65536"),
            (&["up", "--memory", "0"], "--memory", "8 MiB to 256 TiB"),
            (&["node", "--memory", "1KiB"], "--memory", "8 MiB to 256 TiB"),
            (&["up", "--deps-max", "1B"], "--deps-max", "1 MiB to 256 TiB"),
            (&["up", "--async-keep", "0s"], "--async-keep", "above 0"),
            (&["up", "--async-payload-max", "0"], "--async-payload-max", "1 B to 32 MiB"),
            (&["deploy", "x", "--balance", "fair"], "--balance", "knative, least_loaded"),
            (&["async", "list", "--limit", "0"], "--limit", "1 to 4294967295"),
            (&["invoke", "x", "--async", "--max-attempts", "0"], "--max-attempts", "1 to"),
        ];
        for (line, flag, limits) in cases {
            let told = refused(line);
            let value = line.last().unwrap().rsplit('=').next().unwrap();
            for part in [flag, limits, value] {
                assert!(told.contains(part), "{line:?}: {part:?} is not in {told:?}");
            }
        }
    }

    #[test]
    fn negative_amounts_reach_the_check_that_knows_their_limits() {
        let line = ["fanfare", "update", "x", "--memory", "-1", "--cpu", "-2", "--timeout", "-3"];
        assert!(taking_negative_numbers(Args::command()).try_get_matches_from(line).is_ok());
    }

    #[test]
    fn what_is_no_number_is_still_a_flag() {
        assert!(refused(&["update", "x", "--memory", "--no-such"]).contains("--no-such"));
        assert!(refused(&["update", "x", "-9"]).contains("-9"));
    }
}
