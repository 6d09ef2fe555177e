//! `fanfare schedule`.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use fanfare_types::FunctionName;

use super::{OutputArgs, duration, function_name};
use crate::complete::function_names;

/// Call functions by the clock: by cron expressions in time zones, or once.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare schedule set nightly report --cron '30 2 * * *' --zone Europe/Zurich
  fanfare schedule set launch hello --at 2030-01-31T12:00:00+01:00 -d '{\"go\": true}'
  fanfare schedule describe nightly
  fanfare schedule run nightly")]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) command: ScheduleCommand,
}

/// What to do with schedules.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Set one: when which function is called, and with what.
    Set(Box<ScheduleSetArgs>),
    /// List them.
    #[command(visible_alias = "ls")]
    List(ScheduleListArgs),
    /// Show one: the next occurrences, the last ones and what became of them.
    Describe(ScheduleDescribeArgs),
    /// Let nothing be due until it is resumed.
    Pause(ScheduleNameArgs),
    /// Let occurrences be due again, from now on.
    Resume(ScheduleNameArgs),
    /// Fire one now, whatever its time; prints the id of the asynchronous invocation.
    Run(ScheduleNameArgs),
    /// Delete some; what they have called goes on.
    #[command(visible_alias = "rm")]
    Delete(ScheduleDeleteArgs),
}

/// `fanfare schedule set`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare schedule set nightly report --cron '30 2 * * *' --zone Europe/Zurich
  fanfare schedule set soon hello --in 2s -d '{\"name\": \"Ada\"}'
  fanfare schedule set sync ingest --cron '*/5 * * * *' --path /v2 -H 'x-source: clock' --missed once

The settings that are given are all of them: what is left out has its default. Setting it again changes it.")]
pub(crate) struct ScheduleSetArgs {
    /// The schedule's name.
    #[arg(value_parser = function_name)]
    pub(crate) name: FunctionName,
    /// The function that is called.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) function: FunctionName,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// The time zone of the expression, e.g. Europe/Zurich [default: UTC].
    #[arg(long, requires = "cron")]
    pub(crate) zone: Option<String>,
    /// The body: text, @FILE, or - for standard input.
    #[arg(short, long, allow_hyphen_values = true)]
    pub(crate) data: Option<String>,
    /// The method [default: POST].
    #[arg(short = 'X', long)]
    pub(crate) method: Option<String>,
    /// A header as `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(crate) headers: Vec<String>,
    /// Path and query within the function [default: /].
    #[arg(long)]
    pub(crate) path: Option<String>,
    /// What becomes of occurrences that could not happen in time [default: skip].
    #[arg(long, value_enum)]
    pub(crate) missed: Option<Missed>,
    /// What a crash means for a call that has begun [default: at-least-once].
    #[arg(long, value_enum)]
    pub(crate) delivery: Option<Delivery>,
    /// Attempts that may fail [default: 3].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_attempts: Option<u32>,
    /// How long an attempt may still begin, e.g. 10m [default: 6h].
    #[arg(long, value_name = "DURATION")]
    pub(crate) max_age: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// When.
#[derive(ClapArgs, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhenArgs {
    /// By a cron expression: minute, hour, day of month, month, day of week; with six fields, the second first.
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// Once, at this time: RFC 3339, e.g. 2030-01-31T12:00:00+01:00.
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Once, so long from now by this machine's clock, e.g. 10m.
    #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
    pub(crate) after: Option<std::time::Duration>,
}

/// What becomes of occurrences that could not happen in time.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Missed {
    /// They are left out.
    Skip,
    /// The last of them happens late, once.
    Once,
}

/// What a crash means for a call that has begun.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Delivery {
    /// It is repeated.
    AtLeastOnce,
    /// It is not.
    AtMostOnce,
}

/// `fanfare schedule list`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare schedule list
  fanfare schedule list -o wide
  fanfare schedule list -o name | xargs fanfare schedule delete")]
pub(crate) struct ScheduleListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare schedule describe`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare schedule describe nightly
  fanfare schedule describe nightly -o json

States of invocations are asked from a data plane, where that can be reached.")]
pub(crate) struct ScheduleDescribeArgs {
    /// The schedule.
    #[arg(value_parser = function_name)]
    pub(crate) name: FunctionName,
    /// Where functions are called [default: asked from the control API].
    #[arg(long, env = "FANFARE_DATA_PLANE", value_name = "URL")]
    pub(crate) data_plane: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A schedule by its name.
#[derive(ClapArgs, Debug)]
pub(crate) struct ScheduleNameArgs {
    /// The schedule.
    #[arg(value_parser = function_name)]
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare schedule delete`.
#[derive(ClapArgs, Debug)]
pub(crate) struct ScheduleDeleteArgs {
    /// The schedules.
    #[arg(required = true, value_parser = function_name)]
    pub(crate) names: Vec<FunctionName>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
