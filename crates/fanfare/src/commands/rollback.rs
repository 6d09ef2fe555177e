//! `fanfare rollback`: what an earlier revision was, as a new one.

use crate::args::RollbackArgs;
use crate::commands::{Context, deploy};
use crate::exit::{Exit, Failure};

pub(crate) async fn run(context: &Context, args: &RollbackArgs) -> Result<Exit, Failure> {
    let (name, to) = &args.revision;
    let result = context.client.rollback(name, *to).await?;
    let deployed = deploy::prove(context, name, result, args.wait).await?;
    deploy::print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}
