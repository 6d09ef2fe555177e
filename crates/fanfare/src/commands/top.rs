//! `fanfare top`.

use std::io::IsTerminal;

use fanfare_api::{ClusterStatusDocument, FunctionSummaryDocument};
use serde::Serialize;

use crate::args::TopArgs;
use crate::commands::list::state_word;
use crate::commands::{Context, data_plane_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, human_bytes};

/// Rows where the terminal does not say how many it has.
const ROWS: usize = 24;
/// Rows above the functions.
const HEAD_ROWS: usize = 5;
/// Shortest time between two looks.
const INTERVAL_MIN: std::time::Duration = std::time::Duration::from_millis(100);

/// One look.
#[derive(Debug, Serialize)]
struct Look {
    cluster: ClusterStatusDocument,
    /// The busiest first.
    functions: Vec<FunctionSummaryDocument>,
}

pub(crate) async fn run(context: &Context, args: &TopArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &look(context).await?)?,
        Output::Name => look(context).await?.functions.iter().try_for_each(|f| printer.out(&f.name))?,
        Output::Url => printer.out(data_plane_url(&context.client.status().await?)?)?,
        Output::Text | Output::Wide if std::io::stdout().is_terminal() => {
            return tokio::select! {
                ended = live(context, args) => ended,
                _ = tokio::signal::ctrl_c() => Ok(Exit::Ok),
            };
        }
        Output::Text | Output::Wide => print(printer, &look(context).await?, usize::MAX)?,
    }
    Ok(Exit::Ok)
}

/// One look after the other, each in the place of the one before. A control plane that does not answer is waited for.
async fn live(context: &Context, args: &TopArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let mut ticks = tokio::time::interval(args.interval.max(INTERVAL_MIN));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = false;
    loop {
        ticks.tick().await;
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let rows = rows(size.map_or(0, |size| size.ws_row));
        match look(context).await {
            Ok(look) => {
                seen = true;
                printer.bytes(b"\x1b[H\x1b[2J")?;
                print(printer, &look, rows)?;
            }
            Err(failure) if seen && failure.exit != Exit::Usage => printer.warning(failure),
            Err(failure) => return Err(failure),
        }
    }
}

/// Functions that are shown in a terminal of so many rows. One that says 0, as serial consoles and new pseudo terminals
/// do, does not know.
fn rows(of_terminal: u16) -> usize {
    let all = if of_terminal == 0 { ROWS } else { of_terminal.into() };
    all.saturating_sub(HEAD_ROWS + 1).max(1)
}

async fn look(context: &Context) -> Result<Look, Failure> {
    let (cluster, functions) = tokio::try_join!(context.client.status(), context.client.functions())?;
    let mut functions = functions;
    let busy = |f: &FunctionSummaryDocument| {
        let requests = f64::from(f.load.in_flight) + f64::from(f.load.queued);
        requests + f.load.requests_per_second
    };
    functions.sort_by(|a, b| {
        busy(b).total_cmp(&busy(a)).then(b.sandboxes.ready.cmp(&a.sandboxes.ready)).then(a.name.cmp(&b.name))
    });
    Ok(Look { cluster, functions })
}

fn print(printer: &Printer, look: &Look, functions_max: usize) -> Result<(), Failure> {
    let Look { cluster, functions } = look;
    let sum = |of: fn(&FunctionSummaryDocument) -> f64| functions.iter().map(of).sum::<f64>();
    let connected = cluster.nodes.iter().filter(|node| node.connected);
    let (mut nodes, mut reserved, mut capacity) = (0, 0, 0);
    for node in connected {
        nodes += 1;
        reserved += node.reserved.memory_bytes;
        capacity += node.capacity.memory_bytes;
    }
    let data_planes = cluster.data_planes.iter().filter(|data_plane| data_plane.connected).count();
    let counts = cluster.sandboxes;
    printer.out(format_args!(
        "functions {}   sandboxes {} ready, {} starting, {} stopping   requests {:.0}/s, {:.0} in sandboxes, {:.0} waiting",
        functions.len(),
        counts.ready,
        counts.starting,
        counts.stopping,
        sum(|f| f.load.requests_per_second),
        sum(|f| f.load.in_flight.into()),
        sum(|f| f.load.queued.into()),
    ))?;
    printer.out(format_args!(
        "leader {} (epoch {})   nodes {nodes} of {}, {} of {} reserved   data planes {data_planes} of {}\n",
        cluster.leader.name,
        cluster.leader.epoch,
        cluster.nodes.len(),
        human_bytes(reserved),
        human_bytes(capacity),
        cluster.data_planes.len(),
    ))?;
    let header = [
        "FUNCTION",
        "STATE",
        "READY",
        "STARTING",
        "STOPPING",
        "IN-FLIGHT",
        "QUEUED",
        "REQ/S",
        "EXECUTION",
        "FAILED",
        "LAST REASON",
    ];
    let rows: Vec<_> = functions.iter().take(functions_max).map(row).collect();
    printer.table(&header, &rows)?;
    if functions.len() > functions_max {
        printer.out(format_args!("and {} more", functions.len() - functions_max))?;
    }
    Ok(())
}

fn row(function: &FunctionSummaryDocument) -> Vec<String> {
    let (load, sandboxes) = (&function.load, function.sandboxes);
    let room = if load.lacks_room { "no room" } else { state_word(function.state) };
    vec![
        function.name.clone(),
        room.to_owned(),
        sandboxes.ready.to_string(),
        sandboxes.starting.to_string(),
        sandboxes.stopping.to_string(),
        load.in_flight.to_string(),
        load.queued.to_string(),
        format!("{:.1}", load.requests_per_second),
        load.execution_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms")),
        load.failed.to_string(),
        load.last_reason.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_functions_are_always_shown() {
        for (terminal, shown) in [(0, ROWS - 6), (24, 18), (50, 44), (7, 1), (1, 1)] {
            assert_eq!(rows(terminal), shown, "{terminal}");
        }
    }
}
