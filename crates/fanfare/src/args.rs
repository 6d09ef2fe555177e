//! What may be written on the command line.

mod asynchronous;
mod contexts;
mod dirigent;
mod invoke;
mod load;
mod numbers;
mod plan;
mod revisions;
mod roles;
mod schedules;
mod secrets;
mod sim;
mod tls;
mod webhooks;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use fanfare_types::FunctionName;

use crate::complete::{context_names, function_names};
use crate::error_document::{asks_for_documents, misuse, output_of};
use crate::exit::Exit;
use crate::printer::{Output, Printer};
use crate::settings::SettingsArgs;

pub(crate) use asynchronous::{
    AsyncArgs, AsyncCommand, AsyncDeadArgs, AsyncKeepArgs, AsyncOneArgs, AsyncResultArgs, AsyncWaitArgs,
    LaterArgs, log_directory,
};
pub(crate) use contexts::{ContextAddArgs, ContextArgs, ContextCommand, ContextListArgs, ContextNameArgs};
pub(crate) use dirigent::DirigentArgs;
pub(crate) use invoke::InvokeArgs;
pub(crate) use load::LoadArgs;
pub(crate) use numbers::{number, taking_negative_numbers, whole};
pub(crate) use plan::{GapsName, GranularityName, PlanArgs};
pub(crate) use revisions::{RevisionsArgs, RollbackArgs, TagArgs, TrafficArgs};
pub(crate) use roles::{
    API_ADDRESS, ControlPlaneArgs, DataPlaneArgs, DemoArgs, DoctorArgs, NODES_MAX, NodeArgs, UpArgs,
};
pub(crate) use schedules::{
    Delivery, Missed, ScheduleArgs, ScheduleCommand, ScheduleDescribeArgs, ScheduleListArgs,
    ScheduleNameArgs, ScheduleSetArgs,
};
pub(crate) use secrets::{SecretArgs, SecretCommand, SecretListArgs, SecretNameArgs, SecretSetArgs};
pub(crate) use sim::{SettingsOfAll, SimArgs, SlowdownOf};
pub(crate) use tls::TlsArgs;
pub(crate) use webhooks::{
    Verify, WebhookArgs, WebhookCommand, WebhookListArgs, WebhookNameArgs, WebhookSetArgs,
};

const EXAMPLES: &str = "\
Examples:
  fanfare up                          start everything on this machine
  fanfare deploy ./hello.py           register a function; prints its URL
  fanfare invoke hello -d '{\"a\": 1}'   call it
  fanfare dev ./hello.py              redeploy on every save
  fanfare logs -f hello               follow what it writes
  fanfare demo                        see it all in half a minute";

/// Runs functions on your own machines, from zero to thousands of sandboxes and back.
#[derive(Debug, Parser)]
#[command(name = "fanfare", version, before_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// What this process was started with. Ends it, with what is wrong, where that is not allowed.
    pub(crate) fn read() -> Self {
        let read = || {
            let matches = taking_negative_numbers(Self::command()).try_get_matches()?;
            let mut args = Self::from_arg_matches(&matches)?;
            args.global.output = output_of(&matches);
            Ok(args)
        };
        read().unwrap_or_else(|error: clap::Error| {
            let arguments = std::env::args_os().skip(1);
            let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
            if error.use_stderr() && asks_for_documents(&mut arguments) {
                Printer::new(false, false, Output::Json).failure(&misuse(&error));
                std::process::exit(i32::from(Exit::Usage as u8));
            }
            error.exit()
        })
    }
}

/// Where the control API is, unless told otherwise.
pub(crate) const DEFAULT_API: &str = "http://127.0.0.1:9091";

/// For every command.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct GlobalArgs {
    /// The control API [env: FANFARE_API] [default: the context's, else http://127.0.0.1:9091].
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) api: Option<String>,
    /// The context whose control API it is; see `fanfare context` [env: FANFARE_CONTEXT].
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options", conflicts_with = "api",
          add = context_names())]
    pub(crate) context: Option<String>,
    /// Print results and errors only.
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Print each request as a curl command.
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) debug: bool,
    /// The verb's own.
    #[arg(skip)]
    pub(crate) output: Output,
}

/// For every command with a result.
#[derive(ClapArgs, Clone, Copy, Debug)]
pub(crate) struct OutputArgs {
    /// How the result is printed, and by json or yaml why there is none.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Output,
}

/// For commands whose result is about no things with names or URLs.
#[derive(ClapArgs, Clone, Copy, Debug)]
pub(crate) struct ReportOutputArgs {
    /// How the result is printed.
    #[arg(short, long, default_value = "text", value_name = "FORMAT", value_parser = report_output())]
    pub(crate) output: Output,
}

/// The outputs of a report.
fn report_output() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(["text", "wide", "json", "yaml"]).try_map(|name| Output::from_str(&name, false))
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(UpArgs),
    Demo(DemoArgs),
    Deploy(DeployArgs),
    Dev(DevArgs),
    Invoke(InvokeArgs),
    Async(AsyncArgs),
    Schedule(ScheduleArgs),
    Webhook(WebhookArgs),
    List(ListArgs),
    Describe(DescribeArgs),
    Update(UpdateArgs),
    Rollback(RollbackArgs),
    Revisions(RevisionsArgs),
    Traffic(TrafficArgs),
    Tag(TagArgs),
    Delete(DeleteArgs),
    Secret(SecretArgs),
    Logs(LogsArgs),
    Explain(ExplainArgs),
    Top(TopArgs),
    Load(LoadArgs),
    Sim(SimArgs),
    Status(StatusArgs),
    Doctor(DoctorArgs),
    ControlPlane(ControlPlaneArgs),
    DataPlane(DataPlaneArgs),
    Node(NodeArgs),
    Context(ContextArgs),
    Schema(SchemaArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// An HTTP server on $PORT, for `fanfare demo`.
    #[command(name = "__sample-server", hide = true)]
    SampleServer,
}

/// Register a function from a file or a directory, or replace it.
///
/// A directory's fanfare.toml and the flags are the whole truth about its settings. Without a fanfare.toml, a function
/// that is registered already keeps the settings that no flag names (`--reset` gives those their defaults). What is kept
/// and what changes is printed.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare deploy ./hello.py
  fanfare deploy ./app --handler main.py:serve --env MODE=fast --memory 256MiB
  fanfare deploy ./server --concurrency 50 -- --verbose
  fanfare deploy --runtime fake --name load")]
pub(crate) struct DeployArgs {
    /// A .py, .js, .mjs or .cjs file, a program that serves HTTP on $PORT, or a directory (with fanfare.toml or a
    /// handler file).
    #[arg(required_unless_present = "runtime")]
    pub(crate) path: Option<PathBuf>,
    /// What makes its sandboxes, where it is not the code that says so: `fake` runs nothing and takes no path.
    #[arg(long, value_name = "NAME", value_parser = ["fake"], requires = "name",
          conflicts_with_all = ["path", "handler", "arguments"])]
    pub(crate) runtime: Option<String>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Give settings that are not named here their defaults, instead of keeping the registered function's.
    #[arg(long)]
    pub(crate) reset: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    // The last one: its heading would hold for what follows.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

/// Whether a command ends before a node has proved that the function starts.
#[derive(ClapArgs, Clone, Copy, Debug, Default)]
pub(crate) struct WaitArgs {
    /// Register it only: do not have a node prove that it starts.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Have it proved (the default).
    #[arg(long, conflicts_with = "no_wait", hide_short_help = true)]
    pub(crate) wait: bool,
    /// Wait no longer than this for the proof, e.g. 20s [default: as long as its start may take].
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait", hide_short_help = true)]
    pub(crate) wait_timeout: Option<std::time::Duration>,
}

/// What the code is.
#[derive(ClapArgs, Debug)]
pub(crate) struct SourceArgs {
    /// The function's name [default: the file's or directory's].
    #[arg(long, value_parser = function_name, add = function_names())]
    pub(crate) name: Option<FunctionName>,
    /// The handler: FILE, FILE:NAME or :NAME.
    #[arg(long)]
    pub(crate) handler: Option<String>,
    /// Arguments of a program.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

/// Deploy, then deploy again on every save under the same URL; prints the function's logs.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare dev ./hello.py
  fanfare dev ./app --env MODE=debug")]
pub(crate) struct DevArgs {
    /// A .py, .js, .mjs or .cjs file, a program that serves HTTP on $PORT, or a directory (with fanfare.toml or a
    /// handler file).
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

/// List functions.
#[derive(ClapArgs, Debug)]
#[command(
    before_help = "\
Examples:
  fanfare list
  fanfare list -o name | xargs fanfare delete",
    visible_alias = "ls"
)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show a function: settings, sandboxes, decisions with their reasons, the last failure.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare describe hello
  fanfare describe hello -o json")]
pub(crate) struct DescribeArgs {
    /// The function.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Change settings of a function; its code stays.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare update hello --memory 256MiB --timeout 10s
  fanfare update hello --min 1 --max 50 --env MODE=fast --unset-env DEBUG")]
pub(crate) struct UpdateArgs {
    /// The function.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    // The last one: its heading would hold for what follows.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

/// Delete functions.
#[derive(ClapArgs, Debug)]
#[command(
    before_help = "\
Examples:
  fanfare delete hello
  fanfare list -o name | xargs fanfare delete",
    visible_alias = "rm"
)]
pub(crate) struct DeleteArgs {
    /// The functions.
    #[arg(required = true, value_parser = function_name, add = function_names())]
    pub(crate) names: Vec<FunctionName>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Print what a function wrote.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare logs hello
  fanfare logs -f --tail 10 hello
  fanfare logs hello --since 10m --sandbox s10000000007
  fanfare logs --request 5f3b0c6a2d9e4b17a8c05d1e6f7a8b9c

The lines of a request are those that its sandbox wrote while the request was in it, and 20 ms before and after: where it
works on several at once, or on the next at once, lines of the others are among them.")]
pub(crate) struct LogsArgs {
    /// The function; with --request it is known.
    #[arg(value_parser = function_name, add = function_names(), required_unless_present = "request")]
    pub(crate) name: Option<FunctionName>,
    /// Go on until interrupted.
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) which: WhichLines,
    /// Begin with so many of the last lines.
    #[arg(long, default_value_t = 100, value_name = "LINES", value_parser = whole::<0, 10_000>)]
    pub(crate) tail: u32,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Which lines of a log.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct WhichLines {
    /// Only those that are not older than this, e.g. 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<std::time::Duration>,
    /// Only those of this sandbox, e.g. s10000000007.
    #[arg(long, value_name = "ID", visible_alias = "instance")]
    pub(crate) sandbox: Option<String>,
    /// Only those that were written while this request was in its sandbox.
    #[arg(long, value_name = "ID", conflicts_with_all = ["follow", "since", "sandbox"])]
    pub(crate) request: Option<String>,
}

impl WhichLines {
    /// Whether lines are left out though they are there.
    pub(crate) fn has_gaps(&self) -> bool {
        self.since.is_some() || self.sandbox.is_some() || self.request.is_some()
    }
}

/// Say where the time of a request went, and why it was answered as it was.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare explain 5f3b0c6a2d9e4b17a8c05d1e6f7a8b9c
  fanfare explain 5f3b0c6a2d9e4b17a8c05d1e6f7a8b9c -o json

A data plane remembers its last 8,192 requests that waited, failed or were slow, and its last 8,192 others.")]
pub(crate) struct ExplainArgs {
    /// The request's id, which every answer has in X-Request-Id, or an asynchronous invocation's.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show functions, sandboxes, queues and rates as they change; once where the output is no terminal.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare top
  fanfare top -o json")]
pub(crate) struct TopArgs {
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub(crate) interval: std::time::Duration,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show the cluster: leader, nodes, data planes.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare status
  fanfare status --wait --wait-timeout 10s
  fanfare status -o json")]
pub(crate) struct StatusArgs {
    /// Wait until functions can be called: a node and a data plane are connected.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait no longer than this.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) wait_timeout: std::time::Duration,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Print a completion script for a shell; it also offers the names of functions.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare completions bash > /etc/bash_completion.d/fanfare
  fanfare completions zsh > ~/.zfunc/_fanfare
  fanfare completions fish > ~/.config/fish/completions/fanfare.fish")]
pub(crate) struct CompletionsArgs {
    /// Which.
    pub(crate) shell: clap_complete::Shell,
}

/// Print the JSON schema of fanfare.toml, by which editors complete and check it.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare schema > fanfare.schema.json
  sed -i '1i #:schema ./fanfare.schema.json' fanfare.toml")]
pub(crate) struct SchemaArgs {}

/// Write a manual page for each command.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare man /usr/local/share/man/man1
  fanfare man . && man ./fanfare-deploy.1")]
pub(crate) struct ManArgs {
    /// Where to.
    pub(crate) directory: PathBuf,
}

fn function_name(text: &str) -> Result<FunctionName, String> {
    FunctionName::new(text).map_err(|e| format!("the name {e}"))
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    fanfare_api::parse_duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "give a duration above 0, such as 500ms, 30s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
