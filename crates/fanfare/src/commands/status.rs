//! `fanfare status`.

use std::time::{Duration, Instant};

use fanfare_api::ClusterStatusDocument;

use crate::args::StatusArgs;
use crate::commands::{Context, data_plane_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, human_bytes};

/// Pauses between two looks at a cluster that is waited for.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(20);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn run(context: &Context, args: &StatusArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let status = match args.wait {
        true => complete(context, args.wait_timeout).await?,
        false => context.client.status().await?,
    };
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &status)?,
        Output::Name => status.nodes.iter().try_for_each(|node| printer.out(&node.name))?,
        Output::Url => printer.out(data_plane_url(&status)?)?,
        Output::Text | Output::Wide => print(printer, &status)?,
    }
    Ok(Exit::Ok)
}

/// The status once functions can be called. Control planes that do not answer yet are waited for, too.
async fn complete(context: &Context, limit: Duration) -> Result<ClusterStatusDocument, Failure> {
    let ready = |status: &ClusterStatusDocument| {
        status.nodes.iter().any(|node| node.connected) && status.data_planes.iter().any(|d| d.connected)
    };
    let begin = Instant::now();
    let mut pause = LOOK_PAUSE_MIN;
    loop {
        let asked =
            tokio::time::timeout(limit.saturating_sub(begin.elapsed()), context.client.status()).await;
        let lacking = match asked {
            Ok(Ok(status)) if ready(&status) => return Ok(status),
            Ok(Ok(status)) => {
                let count = |up: usize, all: usize| format!("{up} of {all}");
                let nodes = count(status.nodes.iter().filter(|n| n.connected).count(), status.nodes.len());
                let planes = status.data_planes.iter().filter(|d| d.connected).count();
                format!(
                    "{nodes} nodes and {} data planes are connected",
                    count(planes, status.data_planes.len())
                )
            }
            Ok(Err(failure)) if failure.exit == Exit::Platform => failure.what,
            Ok(Err(failure)) => return Err(failure),
            Err(_) => "the control plane does not answer".to_owned(),
        };
        if begin.elapsed() + pause >= limit {
            return Err(Failure::new(
                Exit::Timeout,
                format!("functions cannot be called within {limit:?}: {lacking}"),
            )
            .next("wait longer with --wait-timeout, or look at what the nodes and data planes print"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
    }
}

fn print(printer: &Printer, status: &ClusterStatusDocument) -> Result<(), Failure> {
    let sandboxes = status.sandboxes;
    printer.out(format_args!("version    {}", status.version))?;
    printer.out(format_args!("leader     {} (epoch {})", status.leader.name, status.leader.epoch))?;
    printer.out(format_args!("placement  {}", status.placement))?;
    printer.out(format_args!("functions  {}", status.functions))?;
    printer.out(format_args!(
        "sandboxes  {} ready, {} starting, {} stopping, {} wanted",
        sandboxes.ready, sandboxes.starting, sandboxes.stopping, sandboxes.wanted
    ))?;
    printer.out("")?;
    let up = |connected: bool| if connected { "up" } else { "down" }.to_owned();
    let nodes = status.nodes.iter().map(|node| {
        vec![
            node.name.clone(),
            up(node.connected),
            node.sandboxes.to_string(),
            format!("{:.2}/{}", node.reserved.cpu, node.capacity.cpu),
            format!(
                "{}/{}",
                human_bytes(node.reserved.memory_bytes),
                human_bytes(node.capacity.memory_bytes)
            ),
            node.runtimes.join(","),
        ]
    });
    printer
        .table(&["NODE", "STREAM", "SANDBOXES", "CPU", "MEMORY", "RUNTIMES"], &nodes.collect::<Vec<_>>())?;
    printer.out("")?;
    let data_planes = status.data_planes.iter().map(|d| {
        vec![
            d.name.clone(),
            up(d.connected),
            d.in_flight.to_string(),
            d.queued.to_string(),
            d.address.clone(),
        ]
    });
    let header = ["DATA PLANE", "STREAM", "IN FLIGHT", "QUEUED", "ADDRESS"];
    printer.table(&header, &data_planes.collect::<Vec<_>>())?;
    printer.out("(in flight and queued: as reported within the last second)")?;
    Ok(())
}
