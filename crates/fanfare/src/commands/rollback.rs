//! `fanfare rollback`: what was registered before, as a new revision.

use crate::args::RollbackArgs;
use crate::commands::{Context, deploy};
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &RollbackArgs) -> Result<Exit, Failure> {
    let result = context.client.rollback(&args.name).await?;
    let deployed = deploy::prove(context, &args.name, result, args.wait).await?;
    deploy::print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}
