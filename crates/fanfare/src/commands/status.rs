//! `fanfare status`.

use fanfare_api::ClusterStatusDocument;

use crate::args::StatusArgs;
use crate::commands::{Context, data_plane_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, human_bytes};

pub(crate) async fn run(context: &Context, args: &StatusArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let status = context.client.status().await?;
    match args.output.output {
        Output::Json => printer.json(&status)?,
        Output::Name => status.nodes.iter().try_for_each(|node| printer.out(&node.name))?,
        Output::Url => printer.out(data_plane_url(&status)?)?,
        Output::Text => print(printer, &status)?,
    }
    Ok(Exit::Ok)
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
    Ok(())
}
