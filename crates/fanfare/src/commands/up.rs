//! `fanfare up`: everything in one process.

use tokio::task::JoinSet;

use crate::args::UpArgs;
use crate::exit::{Exit, Failure};
use crate::local::{Local, LocalOptions};
use crate::printer::Printer;
use crate::roles::Sandboxes;
use crate::signals::{Hangup, Signals};
use crate::{dirigent, logging, ports, roles};

pub(crate) async fn run(args: &UpArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("warn");
    ports::apart(&[
        ("--listen", args.listen),
        ("--api-listen", args.api_listen),
        ("--grpc-listen", args.grpc_listen),
    ])?;
    args.capacity.warn_of_more_than_there_is(args.emulate.sandboxes(), printer);
    let with_tls = args.tls.options().is_some();
    let mut signals = if with_tls { Signals::but_hangup()? } else { Signals::listen()? };
    let mut hangup = Hangup::listen(with_tls)?;
    let data_dir = args.dirs.data_dir()?;
    let sandboxes = args.emulate.sandboxes();
    let options = LocalOptions {
        asynchronous: args.keep.options(data_dir.join("data-plane"), args.listen.ip()),
        secrets_key: args.secrets_key.path(&data_dir),
        data_dir,
        run_dir: args.dirs.run_dir()?,
        deps_bytes_max: args.capacity.deps_max,
        capacity: args.capacity.resources(),
        api_address: args.api_listen,
        link_address: Some(args.grpc_listen),
        data_plane_address: args.listen,
        placement: args.policy.placement,
        sandboxes,
        tls: args.tls.options(),
        tracing: args.trace.options(),
        dirigent: dirigent::images(&args.dirigent, matches!(sandboxes, Sandboxes::Emulated { .. })).await?,
    };
    let mut local = tokio::select! {
        // Once for all that the other one holds, and not port after port.
        started = Local::start(options) => started.map_err(|failure| {
            let addresses = [args.listen, args.api_listen, args.grpc_listen];
            if ports::another_of_us(&addresses) { failure.next(roles::BESIDE_HINT) } else { failure }
        })?,
        () = signals.next() => return Err(Failure::said(Exit::Platform)),
    };
    welcome(&local, sandboxes, printer)?;
    let data_plane = local.data_plane().clone();
    let mut reloading = JoinSet::new();
    let ended = loop {
        tokio::select! {
            failed = local.failed() => break Err(failed),
            () = signals.next() => break Ok(Exit::Ok),
            () = hangup.next(), if reloading.is_empty() => {
                let data_plane = data_plane.clone();
                // The files may be on a disk that takes its time.
                reloading.spawn_blocking(move || roles::reload_certificate(&data_plane));
            }
            Some(ended) = reloading.join_next() => roles::certificate_reloaded(ended),
        }
    };
    let stopped = signals.or_at_once(local.stop(printer)).await;
    ended.and_then(|exit| stopped.map(|()| exit))
}

/// The addresses, each with one command to copy.
fn welcome(local: &Local, sandboxes: Sandboxes, printer: Printer) -> Result<(), Failure> {
    let (functions, api, streams) = (local.data_plane_url(), local.api_url(), local.link_url());
    let here = if api == format!("http://{}", crate::args::API_ADDRESS) {
        String::new()
    } else {
        format!(" --api {api}")
    };
    printer.out(format_args!("functions    {functions}    curl {functions}/function/hello/"))?;
    if let Some(functions) = local.data_plane_tls_url() {
        printer.out(format_args!("with TLS     {functions}"))?;
    }
    printer.out(format_args!("control API  {api}    fanfare deploy ./hello.py{here}"))?;
    if let Some(streams) = streams {
        printer.out(format_args!("streams      {streams}    fanfare node --control-plane {streams}"))?;
    }
    if let Sandboxes::Emulated { nodes, .. } = sandboxes {
        printer.out(format_args!(
            "nodes        {nodes}, emulated    fanfare deploy --runtime fake --name hello{here}"
        ))?;
    }
    let missing = local.missing_isolation();
    missing.iter().for_each(|missing| printer.warning(missing));
    if !missing.is_empty() {
        printer.note("`fanfare doctor` says what would mend what is missing");
    }
    Ok(())
}
