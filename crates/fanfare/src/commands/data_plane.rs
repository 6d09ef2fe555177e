//! `fanfare data-plane`.

use fanfare_data_plane::{DataPlane, Options};
use fanfare_link::Dialer;
use tokio_util::sync::CancellationToken;

use crate::args::{DataPlaneArgs, log_directory};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::signals::Signals;
use crate::{logging, roles};

pub(crate) async fn run(args: &DataPlaneArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("info");
    let mut signals = Signals::listen()?;
    let dialer = Dialer::grpc(&args.join.control_plane).map_err(|e| Failure::usage(e.to_string()))?;
    let name = args.join.name.clone().unwrap_or_else(roles::host_name);
    let directory = log_directory(&args.data_dir.data_dir()?, &name);
    let options = Options {
        asynchronous: Some(args.keep.options(directory, args.listen.ip())),
        name: name.into(),
        listen: args.listen,
        address: args.address.as_deref().map(Into::into),
        threads: args.threads,
        ..Options::default()
    };
    let shutdown = CancellationToken::new();
    let handle =
        DataPlane::start(options, dialer, shutdown.clone()).map_err(|e| roles::data_plane_failure(&e))?;
    printer.out(format_args!("http://{}", handle.address()))?;
    tokio::select! {
        () = handle.stopped() => return Err(Failure::platform("the data plane has ended")),
        () = signals.next() => shutdown.cancel(),
    }
    let drained = async {
        handle.stopped().await;
        Ok(Exit::Ok)
    };
    signals.or_at_once(drained).await
}
