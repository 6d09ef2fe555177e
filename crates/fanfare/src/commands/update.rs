//! `fanfare update`: read, change, register.

use crate::args::UpdateArgs;
use crate::commands::{Context, deploy};
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &UpdateArgs) -> Result<Exit, Failure> {
    let mut document = context.client.function(&args.name).await?.function;
    args.settings.apply(&mut document)?;
    let deployed = deploy::register(context, &document).await?;
    deploy::print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}
