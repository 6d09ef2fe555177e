//! `fanfare webhook`: one file per verb.

mod delete;
mod describe;
mod list;
mod set;

use crate::args::{WebhookArgs, WebhookCommand};
use crate::commands::{Context, data_plane_url};
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &WebhookArgs) -> Result<Exit, Failure> {
    match &args.command {
        WebhookCommand::Set(args) => set::run(context, args).await,
        WebhookCommand::List(args) => list::run(context, args).await,
        WebhookCommand::Describe(args) => describe::run(context, args).await,
        WebhookCommand::Delete(args) => delete::run(context, args).await,
    }
}

/// Where webhooks are called: the path follows it.
async fn base(context: &Context) -> Result<String, Failure> {
    data_plane_url(&context.client.status().await?)
}
