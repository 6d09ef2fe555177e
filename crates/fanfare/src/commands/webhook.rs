//! `fanfare webhook`: one file per verb.

mod describe;
mod list;
mod set;

use crate::args::{WebhookArgs, WebhookCommand};
use crate::commands::{Context, data_plane_url, delete};
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &WebhookArgs) -> Result<Exit, Failure> {
    match &args.command {
        WebhookCommand::Set(args) => set::run(context, args).await,
        WebhookCommand::List(args) => list::run(context, args).await,
        WebhookCommand::Describe(args) => describe::run(context, args).await,
        WebhookCommand::Delete(args) => {
            let delete = async |name: &_| context.client.delete_webhook(name).await;
            delete::each(context, &args.names, &args.output, delete).await
        }
    }
}

/// Where webhooks are called: the path follows it.
async fn base(context: &Context) -> Result<String, Failure> {
    data_plane_url(&context.client.status().await?)
}
