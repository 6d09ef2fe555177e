//! Asynchronous invocations on the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::UnknownArgumentValueParser;
use clap::{Args as ClapArgs, Subcommand};
use fanfare_async::{Delivery, InvocationId, StateKind, limits};
use fanfare_data_plane::{AsyncOptions, CallbackTargets};
use fanfare_types::FunctionName;
use http::header::{HeaderName, HeaderValue};

use super::{OutputArgs, duration, function_name, whole};
use crate::complete::function_names;
use crate::exit::Failure;
use crate::printer::Output;

/// How a call is made that nobody waits for.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Asynchronous calls")]
pub(crate) struct LaterArgs {
    /// Do not wait: print the invocation's id once the call is durable.
    #[arg(long = "async")]
    pub(crate) later: bool,
    /// How the id is printed.
    // What it needs is checked where it can be said why.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub(crate) output: Option<Output>,
    // Its result is waited for apart, by its id.
    #[arg(long = "wait", hide = true, num_args = 0..=1, default_missing_value = "", value_name = "DURATION",
          value_parser = UnknownArgumentValueParser::suggest("`fanfare async result ID --wait 30s` waits for its end"))]
    _wait: Option<String>,
    /// Run it once or, if a crash cuts it short, not at all [default: repeat it then].
    #[arg(long, requires = "later")]
    at_most_once: bool,
    /// Attempts that may fail.
    #[arg(long, value_name = "N", requires = "later", conflicts_with = "at_most_once",
          value_parser = whole::<1, { limits::ATTEMPTS_MAX }>)]
    max_attempts: Option<u32>,
    /// How long an attempt may still begin, e.g. 2h.
    #[arg(long, value_name = "DURATION", requires = "later", value_parser = duration)]
    max_age: Option<Duration>,
    /// POST its end to this URL.
    #[arg(long, value_name = "URL", requires = "later")]
    callback: Option<String>,
    /// The same key with the same request is the same call.
    #[arg(long, value_name = "KEY", requires = "later")]
    idempotency_key: Option<String>,
}

impl LaterArgs {
    /// Whether what is given belongs together.
    ///
    /// # Errors
    /// A format for an id, where there is none.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.output {
            Some(_) if !self.later => Err(Failure::usage(
                "-o says how the id of an asynchronous call is printed, and this call is waited for",
            )
            .next("leave -o out: the function's answer is printed as it came; or call with --async")),
            _ => Ok(()),
        }
    }

    /// The same as header fields.
    pub(crate) fn fields(&self) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
        let texts = [
            ("x-fanfare-delivery", self.at_most_once.then(|| Delivery::AtMostOnce.to_string())),
            ("x-fanfare-max-attempts", self.max_attempts.map(|attempts| attempts.to_string())),
            ("x-fanfare-max-age", self.max_age.map(|age| format!("{}ms", age.as_millis()))),
            ("x-fanfare-callback", self.callback.clone()),
            ("idempotency-key", self.idempotency_key.clone()),
        ];
        let given = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let field = |(name, text): (&'static str, String)| {
            let value = HeaderValue::try_from(&text);
            let value =
                value.map_err(|_| Failure::usage(format!("{name}: {text:?} is no header's value")))?;
            Ok((HeaderName::from_static(name), value))
        };
        given.map(field).collect()
    }
}

/// See to asynchronous invocations: status, result, cancel, list, replay.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare invoke --async resize -d @photo.jpg     prints an id
  fanfare async status ID
  fanfare async result ID --wait 30s > small.jpg
  fanfare async cancel ID
  fanfare async list --function resize --state retrying
  fanfare async dead -o name | xargs -n1 fanfare async replay")]
pub(crate) struct AsyncArgs {
    /// Where functions are called [default: asked from the control API].
    #[arg(long, global = true, env = "FANFARE_DATA_PLANE", value_name = "URL")]
    pub(crate) data_plane: Option<String>,
    #[command(subcommand)]
    pub(crate) command: AsyncCommand,
}

/// What is asked or done.
#[derive(Debug, Subcommand)]
pub(crate) enum AsyncCommand {
    /// Show how an invocation stands.
    Status(AsyncWaitArgs),
    /// Print its result: the function's answer.
    Result(AsyncResultArgs),
    /// End it, whether it waits or runs.
    Cancel(AsyncOneArgs),
    /// Call a failed or dead one again, with the same request; prints the new id.
    Replay(AsyncOneArgs),
    /// List invocations.
    #[command(visible_alias = "ls")]
    List(AsyncListArgs),
    /// List those that are dead and have not been replayed.
    #[command(visible_alias = "dead-letters")]
    Dead(AsyncDeadArgs),
}

/// One invocation.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncOneArgs {
    /// Its id.
    pub(crate) id: InvocationId,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// One invocation, and its end.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncWaitArgs {
    /// Its id.
    pub(crate) id: InvocationId,
    /// Wait so long for its end, e.g. 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The result of one invocation.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncResultArgs {
    /// Its id.
    pub(crate) id: InvocationId,
    /// Wait so long for it, e.g. 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

/// Which invocations to list.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncListArgs {
    /// Those in this state: queued, running, retrying, succeeded, failed, dead or cancelled.
    #[arg(long)]
    pub(crate) state: Option<StateKind>,
    #[command(flatten)]
    pub(crate) dead: AsyncDeadArgs,
}

/// Which dead letters to list.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncDeadArgs {
    /// Those of this function.
    #[arg(long, value_parser = function_name, add = function_names())]
    pub(crate) function: Option<FunctionName>,
    /// At most so many.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole::<1, { u32::MAX }>)]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a data plane keeps asynchronous invocations.
#[derive(ClapArgs, Debug)]
pub(crate) struct AsyncKeepArgs {
    /// Bytes of one asynchronous request, and of one result, at most 32MiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = payload_bytes, hide_short_help = true)]
    async_payload_max: u64,
    /// How long results of asynchronous invocations are kept.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration, hide_short_help = true)]
    async_keep: Duration,
    /// Whom lists of asynchronous invocations are for: this machine (and the other data planes), or any that reaches
    /// the data plane.
    #[arg(long, value_name = "WHOM", default_value = "local", value_parser = ["local", "any"], hide_short_help = true)]
    async_lists: String,
    /// Addresses that callbacks may go to: none, public, private (networks, too) or any (this machine, too)
    /// [default: any if it listens on loopback, else private]. Whoever may call functions may have it POST there; never
    /// to the platform's own ports.
    #[arg(long, value_name = "WHICH", hide_short_help = true)]
    callbacks: Option<CallbackTargets>,
    /// Take every request to a function's host in as an asynchronous one, as Dirigent's data planes do in that mode: it
    /// is answered with an id, and GET / with an id as its body with the result.
    #[arg(long, hide_short_help = true)]
    dirigent_async: bool,
}

impl AsyncKeepArgs {
    /// The settings, with the log in a directory.
    pub(crate) fn options(&self, directory: PathBuf, listen: std::net::IpAddr) -> AsyncOptions {
        let mut options = AsyncOptions::new(directory);
        options.payload_bytes_max = self.async_payload_max;
        options.limits.results_keep = self.async_keep;
        options.lists_for_all = self.async_lists == "any";
        options.as_dirigent = self.dirigent_async;
        // Whoever can call it then is on this machine already.
        let default = if listen.is_loopback() { CallbackTargets::Any } else { options.callbacks };
        options.callbacks = self.callbacks.unwrap_or(default);
        options
    }
}

/// Where the data plane of a name keeps its log.
pub(crate) fn log_directory(data_dir: &Path, name: &str) -> PathBuf {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let mut directory = String::new();
    for byte in name.bytes() {
        if plain(byte) {
            directory.push(char::from(byte));
        } else {
            directory.push_str(&format!("%{byte:02x}"));
        }
    }
    data_dir.join("data-planes").join(directory)
}

fn payload_bytes(text: &str) -> Result<u64, String> {
    let bytes =
        fanfare_api::parse_bytes(text).filter(|bytes| (1..=limits::PAYLOAD_BYTES_MAX).contains(bytes));
    bytes.ok_or_else(|| format!("give a size such as 16MiB, 1 B to {} MiB", limits::PAYLOAD_BYTES_MAX >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_directory_of_its_own() {
        let directory = |name| log_directory(Path::new("/d"), name).display().to_string();
        assert_eq!(directory("edge-1"), "/d/data-planes/edge-1");
        assert_eq!(directory("../a/b.c"), "/d/data-planes/%2e%2e%2fa%2fb%2ec");
        assert_ne!(directory("%2e"), directory("."));
    }
}
