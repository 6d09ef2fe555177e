//! Calling a function.

use clap::Args as ClapArgs;
use fanfare_types::{FunctionName, Tag};

use super::{LaterArgs, duration, function_name};
use crate::complete::function_names;

/// Call a function: its answer goes to standard output, everything else to standard error.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare invoke hello -d '{\"name\": \"Ada\"}'
  fanfare invoke resize -d @photo.jpg -H 'content-type: image/jpeg' > small.jpg
  cat events.json | fanfare invoke ingest -d - --path /v2 -v
  fanfare invoke hello@canary
  fanfare invoke --async resize -d @photo.jpg --callback https://example.com/done

Exit codes: 0 answered, 1 function error, 2 usage, 3 platform error, 4 not found, 5 timeout")]
pub(crate) struct InvokeArgs {
    /// The function, and which of its tags; otherwise whichever revision its traffic goes to.
    #[arg(value_name = "NAME[@TAG]", value_parser = tagged_name, add = function_names())]
    pub(crate) which: (FunctionName, Option<Tag>),
    /// The body: text, @FILE, or - for standard input.
    #[arg(short, long, allow_hyphen_values = true)]
    pub(crate) data: Option<String>,
    /// The method [default: POST with a body, else GET].
    #[arg(short = 'X', long)]
    pub(crate) method: Option<http::Method>,
    /// A header as `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(crate) headers: Vec<String>,
    /// Path and query within the function.
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// Print the headers and where the time went.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Give up after so long, e.g. 10s [default: the function's own timeout].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<std::time::Duration>,
    /// Where functions are called [default: asked from the control API].
    #[arg(long, env = "FANFARE_DATA_PLANE", value_name = "URL")]
    pub(crate) data_plane: Option<String>,
    #[command(flatten)]
    pub(crate) later: LaterArgs,
}

impl InvokeArgs {
    /// The function.
    pub(crate) fn name(&self) -> &FunctionName {
        &self.which.0
    }
}

/// `NAME` or `NAME@TAG`.
fn tagged_name(text: &str) -> Result<(FunctionName, Option<Tag>), String> {
    match text.split_once('@') {
        None => Ok((function_name(text)?, None)),
        Some((name, tag)) => {
            if let Ok(number) = tag.parse::<u32>() {
                return Err(format!(
                    "a revision is called by a tag: `fanfare tag {name} TAG={number}`, then {name}@TAG"
                ));
            }
            let tag = Tag::new(tag).map_err(|allowed| format!("a tag is {allowed}"))?;
            Ok((function_name(name)?, Some(tag)))
        }
    }
}
