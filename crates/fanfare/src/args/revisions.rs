//! The verbs that are about revisions.

use clap::Args as ClapArgs;
use fanfare_types::{FunctionName, Tag, Target};

use super::{OutputArgs, WaitArgs, function_name};
use crate::complete::function_names;

/// List the revisions of a function that are kept: traffic, tags, sandboxes, and why one does not start.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare revisions hello
  fanfare revisions hello -o wide     with the last log lines of those that do not start")]
pub(crate) struct RevisionsArgs {
    /// The function.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Share a function's requests among its revisions, by per cent; without any, show how they are shared.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare traffic hello
  fanfare traffic hello v3=90 v4=10
  fanfare traffic hello v3=90 latest=10
  fanfare traffic hello latest=100")]
pub(crate) struct TrafficArgs {
    /// The function.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) name: FunctionName,
    /// A revision and its part; together 100. `latest` is whichever is the latest, v3 stays revision 3.
    #[arg(value_name = "REVISION=PERCENT", value_parser = share)]
    pub(crate) shares: Vec<(Target, u32)>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Name revisions of a function, so that they can be called whatever the traffic: /function/NAME@TAG/, host TAG--NAME;
/// without any, show the tags.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare tag hello
  fanfare tag hello canary=4
  fanfare tag hello stable=3 next=latest
  fanfare tag hello canary=             take the tag away")]
pub(crate) struct TagArgs {
    /// The function.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) name: FunctionName,
    /// A tag and its revision, or nothing to take it away.
    #[arg(value_name = "TAG=REVISION", value_parser = tag)]
    pub(crate) tags: Vec<(String, Option<Target>)>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Register again, as a new revision, what the one before was; again: forth. Or what any one was that is kept.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare rollback hello
  fanfare rollback hello@3
  fanfare rollback hello --no-wait")]
pub(crate) struct RollbackArgs {
    /// The function, and which revision; otherwise the newest before the current one that is not known to be broken.
    #[arg(value_name = "NAME[@REVISION]", value_parser = revision_name, add = function_names())]
    pub(crate) revision: (FunctionName, Option<u32>),
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `NAME` or `NAME@REVISION`.
fn revision_name(text: &str) -> Result<(FunctionName, Option<u32>), String> {
    match text.split_once('@') {
        None => Ok((function_name(text)?, None)),
        Some((name, number)) => {
            let number = number.strip_prefix('v').unwrap_or(number).parse().ok().filter(|number| *number > 0);
            let number = number.ok_or("a revision is a number from 1 on, as in hello@3")?;
            Ok((function_name(name)?, Some(number)))
        }
    }
}

fn target(text: &str) -> Result<Target, String> {
    if text == "latest" {
        return Ok(Target::Latest);
    }
    let number = text.strip_prefix('v').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number
        .map(Target::Revision)
        .ok_or_else(|| "a revision is `latest` or a number from 1 on, as in v3".to_owned())
}

/// `REVISION=PERCENT`.
fn share(text: &str) -> Result<(Target, u32), String> {
    let (revision, percent) = text.split_once('=').ok_or("give a revision and its per cent, as in v3=10")?;
    let percent = percent.strip_suffix('%').unwrap_or(percent).parse().ok();
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    Ok((target(revision)?, percent.ok_or("give 1 to 100 per cent, as in v3=10")?))
}

/// `TAG=REVISION`, or `TAG=`.
fn tag(text: &str) -> Result<(String, Option<Target>), String> {
    let (tag, revision) = text.split_once('=').ok_or_else(|| {
        let tag = text.trim_end_matches('-');
        format!("give a tag and its revision, as in {tag}=3; {tag}= takes it away")
    })?;
    let tag = Tag::new(tag).map_err(|allowed| format!("a tag is {allowed}"))?.to_string();
    Ok((tag, if revision.is_empty() { None } else { Some(target(revision)?) }))
}
