//! `fanfare webhook list`.

use fanfare_api::{VerifyName, WebhookListDocument, WebhookStatusDocument};

use super::base;
use crate::args::WebhookListArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &WebhookListArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let webhooks = context.client.webhooks().await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => {
            printer.document(output, &WebhookListDocument { webhooks, next: None })?;
        }
        Output::Name => webhooks.iter().try_for_each(|w| printer.out(&w.webhook.name))?,
        Output::Url => {
            let base = base(context).await?;
            webhooks.iter().try_for_each(|w| printer.out(format_args!("{base}{}", w.path)))?;
        }
        Output::Text | Output::Wide if webhooks.is_empty() => {
            printer.note(
                "no webhooks; make one with `fanfare webhook set NAME FUNCTION --verify github --secret SECRET`",
            );
        }
        Output::Text | Output::Wide => {
            let row = |w: &WebhookStatusDocument| {
                vec![
                    w.webhook.name.clone(),
                    w.webhook.function.clone(),
                    verify_word(w.webhook.verify).to_owned(),
                    w.webhook.secret.clone(),
                    if w.webhook.wait { "the answer" } else { "202" }.to_owned(),
                    state(w),
                    w.path.clone(),
                ]
            };
            let header = ["NAME", "FUNCTION", "VERIFY", "SECRET", "GETS", "STATE", "PATH"];
            printer.table(&header, &webhooks.iter().map(row).collect::<Vec<_>>())?;
        }
    }
    Ok(Exit::Ok)
}

pub(super) fn verify_word(verify: VerifyName) -> &'static str {
    fanfare_types::WebhookScheme::from(verify).word()
}

pub(super) fn state(webhook: &WebhookStatusDocument) -> String {
    match (webhook.function_exists, webhook.secret_exists) {
        (true, true) => "ready",
        (false, true) => "no function",
        (true, false) => "no secret",
        (false, false) => "no function, no secret",
    }
    .to_owned()
}
