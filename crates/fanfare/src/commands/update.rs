//! `fanfare update`: read, change, register.

use crate::args::UpdateArgs;
use crate::commands::{Context, deploy};
use crate::derived::left_open;
use crate::exit::{Exit, Failure};
use crate::settings::SettingsArgs;

pub(crate) async fn run(context: &Context, args: &UpdateArgs) -> Result<Exit, Failure> {
    if args.settings == SettingsArgs::default() {
        return Err(Failure::usage(format!("nothing of {} is to be changed", args.name)).next(format!(
            "give a setting, such as `fanfare update {} --memory 256MiB`; `fanfare update --help` lists all of them \
             (--env, --memory, --cpu, --concurrency, --timeout, --min, --max, --scale and more)",
            args.name
        )));
    }
    let before = context.client.function(&args.name).await?.function;
    args.settings.not_there(&before).iter().for_each(|missing| context.printer.warning(missing));
    let mut document = left_open(before.clone());
    args.settings.apply(&mut document)?;
    let deployed = deploy::register(context, &document, Some(&before), args.wait).await;
    let deployed = deployed.map_err(|failure| args.settings.name_flags(failure))?;
    deploy::print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}
