//! `fanfare node`.

use fanfare_link::Dialer;

use crate::args::NodeArgs;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::roles::RunningNode;
use crate::signals::Signals;
use crate::{dirs, logging, roles};

pub(crate) async fn run(args: &NodeArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("info");
    let mut signals = Signals::listen()?;
    let dialer = Dialer::grpc(&args.join.control_plane).map_err(|e| Failure::usage(e.to_string()))?;
    let name = args.join.name.clone().unwrap_or_else(roles::host_name);
    let data_dir = args.dirs.data_dir.clone().unwrap_or_else(dirs::data_dir);
    let run_dir = args.dirs.run_dir.clone().unwrap_or_else(dirs::run_dir);
    let node = tokio::select! {
        node = RunningNode::start(&name, args.capacity.resources(), &data_dir, &run_dir, dialer) => node?,
        () = signals.next() => return Err(Failure::said(Exit::Platform)),
    };
    node.missing_isolation().iter().for_each(|missing| printer.warning(missing));
    printer.out(format_args!("node {name}"))?;
    signals.next().await;
    let stopped = async {
        node.stop().await;
        Ok(Exit::Ok)
    };
    signals.or_at_once(stopped).await
}
