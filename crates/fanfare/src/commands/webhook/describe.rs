//! `fanfare webhook describe`.

use fanfare_api::{VerifyName, WebhookStatusDocument};

use super::base;
use super::list::{state, verify_word};
use crate::args::WebhookNameArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &WebhookNameArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let status = context.client.webhook(&args.name).await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => printer.document(output, &status)?,
        Output::Name => printer.out(&status.webhook.name)?,
        Output::Url => printer.out(format_args!("{}{}", base(context).await?, status.path))?,
        Output::Text | Output::Wide => {
            let url = match base(context).await {
                Ok(base) => format!("{base}{}", status.path),
                Err(failure) => format!("({failure})"),
            };
            print(context, &status, &url)?;
        }
    }
    Ok(Exit::Ok)
}

fn print(context: &Context, status: &WebhookStatusDocument, url: &str) -> Result<(), Failure> {
    let (printer, webhook) = (&context.printer, &status.webhook);
    let row = |name: &str, value: String| printer.out(format_args!("{name:<10} {value}"));
    row("name", webhook.name.clone())?;
    row("url", url.to_owned())?;
    row("function", webhook.function.clone())?;
    row("verify", verify_word(webhook.verify).to_owned())?;
    row("secret", webhook.secret.clone())?;
    row("state", state(status))?;
    let answer = if webhook.wait { "the function's answer" } else { "202, as soon as the call is durable" };
    row("answer", answer.to_owned())?;
    if let Some(tolerance) = &webhook.tolerance
        && matches!(webhook.verify, VerifyName::Stripe | VerifyName::Standard)
    {
        row("tolerance", format!("{tolerance} s"))?;
    }
    printer.out("\ncall it, with the secret in $SECRET:")?;
    example(webhook.verify, url).lines().try_for_each(|line| printer.out(format_args!("  {line}")))?;
    Ok(())
}

/// A command that signs, for a shell with curl and Python. The secret is on no command line, which every user of the
/// machine could read; openssl would take it nowhere else.
fn example(verify: VerifyName, url: &str) -> String {
    let signer = |key: &str, digest: &str| {
        let read = format!("import base64, hmac, os, sys; key = os.environb[b\"SECRET\"]{key}");
        format!("SECRET=$SECRET python3 -c '{read}; print({digest})'")
    };
    let hmac = signer("", "hmac.new(key, sys.stdin.buffer.read(), \"sha256\").hexdigest()");
    match verify {
        VerifyName::Github => format!(
            "body='{{\"name\": \"Ada\"}}'\n\
             curl {url} -d \"$body\" -H \"X-Hub-Signature-256: sha256=$(printf %s \"$body\" | {hmac})\""
        ),
        VerifyName::Stripe => format!(
            "body='{{\"name\": \"Ada\"}}' t=$(date +%s)\n\
             curl {url} -d \"$body\" -H \"Stripe-Signature: t=$t,v1=$(printf %s \"$t.$body\" | {hmac})\""
        ),
        VerifyName::Standard => format!(
            "body='{{\"name\": \"Ada\"}}' id=msg_1 t=$(date +%s)\n\
             sig=$(printf %s \"$id.$t.$body\" | {})\n\
             curl {url} -d \"$body\" -H \"webhook-id: $id\" -H \"webhook-timestamp: $t\" -H \"webhook-signature: v1,$sig\"",
            signer(
                ".decode().removeprefix(\"whsec_\")",
                "base64.b64encode(hmac.digest(base64.b64decode(key), sys.stdin.buffer.read(), \"sha256\")).decode()"
            )
        ),
        VerifyName::Token => {
            format!(
                "printf 'Authorization: Bearer %s' \"$SECRET\" | curl {url} -d '{{\"name\": \"Ada\"}}' -H @-"
            )
        }
    }
}
