//! `fanfare webhook set`.

use fanfare_api::{DeployOutcome, Quantity, VerifyName, WebhookDocument};
use fanfare_types::WebhookSpec;

use super::base;
use crate::args::{Verify, WebhookSetArgs};
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &WebhookSetArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let document = WebhookDocument {
        name: args.name.to_string(),
        function: args.function.to_string(),
        verify: match args.verify {
            Verify::Github => VerifyName::Github,
            Verify::Stripe => VerifyName::Stripe,
            Verify::Standard => VerifyName::Standard,
            Verify::Token => VerifyName::Token,
        },
        secret: args.secret.to_string(),
        wait: args.wait,
        tolerance: args.tolerance.as_deref().map(Quantity::from),
    };
    // Found wrong here, it is known without a control plane.
    WebhookSpec::try_from(document.clone())?;
    let result = context.client.put_webhook(&document).await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => printer.document(output, &result)?,
        Output::Name => printer.out(&result.name)?,
        Output::Text | Output::Wide | Output::Url => {
            let done = match result.outcome {
                DeployOutcome::Created => "Created",
                DeployOutcome::Updated => "Updated",
                DeployOutcome::Unchanged => "Unchanged",
            };
            printer.stage(format_args!("{done} {}", result.name));
            printer.out(format_args!("{}{}", base(context).await?, result.path))?;
        }
    }
    Ok(Exit::Ok)
}
