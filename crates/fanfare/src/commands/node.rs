//! `fanfare node`.

use fanfare_link::Dialer;

use crate::args::NodeArgs;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::roles::{NodeSettings, RunningNode, Sandboxes};
use crate::signals::Signals;
use crate::{descriptors, logging, roles};

pub(crate) async fn run(args: &NodeArgs, printer: Printer) -> Result<Exit, Failure> {
    let sandboxes = args.emulate.sandboxes();
    logging::start(match sandboxes {
        Sandboxes::Real { .. } => "info",
        // One of the nodes speaks for all of them; a line for each link would say it thousands of times.
        Sandboxes::Emulated { .. } => "info,fanfare_link=error",
    });
    args.capacity.warn_of_more_than_there_is(sandboxes, printer);
    let mut signals = Signals::listen()?;
    let dialer = Dialer::grpc(&args.join.control_plane).map_err(|e| Failure::usage(e.to_string()))?;
    let name = args.join.name.clone().unwrap_or_else(roles::host_name);
    if let Sandboxes::Emulated { nodes, .. } = sandboxes {
        descriptors::suffice(nodes)?;
    }
    let settings = NodeSettings {
        name: name.clone(),
        capacity: args.capacity.resources(),
        data_dir: args.dirs.data_dir()?,
        run_dir: args.dirs.run_dir()?,
        deps_bytes_max: args.capacity.deps_max,
        sandboxes,
    };
    let node = tokio::select! {
        node = RunningNode::start(settings, dialer) => node?,
        () = signals.next() => return Err(Failure::said(Exit::Platform)),
    };
    node.missing_isolation().iter().for_each(|missing| printer.warning(missing));
    match sandboxes {
        Sandboxes::Real { .. } => printer.out(format_args!("node {name}"))?,
        Sandboxes::Emulated { nodes, .. } => {
            printer.out(format_args!("nodes {name}-0 to {name}-{}", nodes.saturating_sub(1)))?;
        }
    }
    signals.next().await;
    let stopped = async {
        node.stop().await;
        Ok(Exit::Ok)
    };
    signals.or_at_once(stopped).await
}
