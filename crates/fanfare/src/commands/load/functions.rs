//! The functions that load is made for: deployed before, deleted after.

use std::time::Duration;

use fanfare_api::{FunctionDocument, HandlerDocument, ProtocolName};
use fanfare_load::Target;
use fanfare_trace::{Plan, PlanFunction};
use fanfare_types::{FunctionName, limits};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::figures;
use crate::args::LoadArgs;
use crate::client::Client;
use crate::commands::Context;
use crate::dirigent;
use crate::exit::Failure;
use crate::printer::counted;
use crate::replay::functions;

/// Registrations and deletions under way at once.
const AT_ONCE: usize = 32;
/// So much longer than the platform gives a request is its answer waited for.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// What is called.
#[derive(Clone, Debug)]
pub(super) struct Deployed {
    /// By the plan's functions.
    pub(super) targets: Vec<Target>,
    /// What was registered for it.
    registered: Vec<FunctionName>,
    /// Sandboxes that had been ordered before: some functions begin with a few.
    pub(super) ordered_before: Option<u64>,
}

impl Deployed {
    /// Names at the platform, by the plan's functions.
    pub(super) fn names(&self) -> Vec<String> {
        self.targets.iter().map(|target| target.name.clone()).collect()
    }
}

/// Deploys a function for each of the plan's, unless one is there that is to be called.
pub(super) async fn deploy(context: &Context, args: &LoadArgs, plan: &Plan) -> Result<Deployed, Failure> {
    if let Some(function) = &args.function {
        // Its absence is told before anything is sent.
        context.client.function(function).await?;
        let targets = vec![Target { name: function.to_string(), obeys: false }];
        let ordered_before = figures::sandboxes_ordered(context).await;
        return Ok(Deployed { targets, registered: Vec::new(), ordered_before });
    }
    let begins = format!("{}-", args.prefix);
    if !args.keep && !context.client.names(&begins).await?.is_empty() {
        return Err(Failure::usage(format!("there are functions whose names begin with {begins}")).next(
            "choose another --prefix, or say --keep to use and keep them; they would be replaced and deleted",
        ));
    }
    let status = context.client.status().await?;
    let nodes = status.nodes.iter().filter(|node| node.connected);
    let room_bytes = nodes.clone().map(|node| node.capacity.memory_bytes).max().unwrap_or(0);
    let is_emulated = !nodes.clone().any(|node| node.runtimes.iter().any(|runtime| runtime == "process"));
    let maker = Maker {
        code: if is_emulated { None } else { Some(upload(&context.client).await?) },
        timeout: args.timeout.min(limits::REQUEST_TIMEOUT_MAX),
        room_bytes,
    };
    prove(context, &maker, &args.prefix).await?;
    let ordered_before = figures::sandboxes_ordered(context).await;
    let most = functions::most_memory(plan);
    let documents = plan.functions.iter().enumerate().map(|(number, function)| {
        let name = functions::name(&args.prefix, number, &function.name);
        maker.document(&name, function, most[number])
    });
    let client = &context.client;
    let register = |document: FunctionDocument| async move {
        client.put_function(&document).await?;
        FunctionName::new(&document.name).map_err(|e| Failure::platform(e.to_string()))
    };
    let registered: Result<Vec<FunctionName>, Failure> =
        stream::iter(documents.map(register)).buffered(AT_ONCE).try_collect().await;
    let registered = match registered {
        Ok(registered) => registered,
        Err(failure) => {
            clean(context, args).await;
            return Err(failure);
        }
    };
    context.printer.stage(format_args!("Registered {}", counted(registered.len() as u64, "function")));
    let targets = registered.iter().map(|name| Target { name: name.to_string(), obeys: true }).collect();
    Ok(Deployed { targets, registered, ordered_before })
}

/// Deletes what was deployed, unless it is to be kept. What cannot be deleted is told: the run is over, and counts.
pub(super) async fn remove(context: &Context, args: &LoadArgs, deployed: &Deployed) {
    if args.keep || deployed.registered.is_empty() {
        return;
    }
    match delete(&context.client, deployed.registered.clone()).await {
        Ok(()) => context
            .printer
            .stage(format_args!("Deleted {}", counted(deployed.registered.len() as u64, "function"))),
        Err(failure) => left(context, &format!("{}-", args.prefix), &failure),
    }
}

/// Deletes what a deployment that did not end has left.
pub(super) async fn clean(context: &Context, args: &LoadArgs) {
    if args.keep || args.function.is_some() {
        return;
    }
    let begins = format!("{}-", args.prefix);
    loop {
        let names = match context.client.names(&begins).await {
            Ok(names) if names.is_empty() => return,
            Ok(names) => names,
            Err(failure) => return left(context, &begins, &failure),
        };
        let names = names.iter().filter_map(|name| FunctionName::new(name).ok()).collect();
        if let Err(failure) = delete(&context.client, names).await {
            return left(context, &begins, &failure);
        }
    }
}

fn left(context: &Context, begins: &str, failure: &Failure) {
    context.printer.warning(format_args!("functions whose names begin with {begins} are left: {failure}"));
}

async fn delete(client: &Client, names: Vec<FunctionName>) -> Result<(), Failure> {
    let delete = |name: FunctionName| async move {
        match client.delete_function(&name).await {
            Err(failure) if failure.is_not_found() => Ok(()),
            deleted => deleted,
        }
    };
    stream::iter(names).map(delete).buffer_unordered(AT_ONCE).try_collect().await
}

/// Has a node prove that such a function starts: that is told before anything is sent, and the code is there then.
async fn prove(context: &Context, maker: &Maker, prefix: &FunctionName) -> Result<(), Failure> {
    let text = format!("{prefix}-check");
    let name = FunctionName::new(&text).map_err(|e| Failure::usage(format!("--prefix: the name {e}")))?;
    let function = PlanFunction { name: text, memory_mib: 1, initial: 0, min: 0, max: 0 };
    context.client.put_function(&maker.document(name.as_str(), &function, 1)).await?;
    let proved = context.client.prepare(&name, None).await;
    context.client.delete_function(&name).await?;
    proved.map(|_| ())
}

/// Uploads this program, which is the function `trace`; its digest.
async fn upload(client: &Client) -> Result<String, Failure> {
    let package = tokio::task::spawn_blocking(dirigent::own_package)
        .await
        .map_err(|e| Failure::platform(format!("cannot pack this program: {e}")))??;
    let digest = package.digest;
    if !client.has_blob(digest).await? {
        client.put_blob(package).await?;
    }
    Ok(digest.to_string())
}

/// Makes functions' documents.
struct Maker {
    /// The digest of this program; none where nodes are emulated.
    code: Option<String>,
    timeout: Duration,
    /// Memory of the largest node.
    room_bytes: u64,
}

impl Maker {
    fn document(&self, name: &str, function: &PlanFunction, most_memory_mib: u32) -> FunctionDocument {
        let mut document = match &self.code {
            Some(_) => dirigent::trace(false, ProtocolName::Http1),
            None => FunctionDocument::new("fake", HandlerDocument::Fake {}),
        };
        name.clone_into(&mut document.name);
        document.code.clone_from(&self.code);
        functions::fit(&mut document, function, most_memory_mib, self.room_bytes, self.timeout);
        document
    }
}

#[cfg(test)]
mod tests {
    use fanfare_api::Quantity;

    use super::*;

    #[test]
    fn functions_reserve_what_the_plan_says_within_the_nodes_room() {
        let maker = Maker { code: None, timeout: Duration::from_secs(3), room_bytes: 100 << 20 };
        let function =
            |memory_mib, max| PlanFunction { name: "f".into(), memory_mib, initial: 2, min: 1, max };
        let document = maker.document("load-1", &function(60, 10_000_000), 90);
        assert_eq!(document.limits.memory_request, Some(Quantity::Integer(60 << 20)));
        assert_eq!(document.limits.memory_limit, Some(Quantity::Integer(154 << 20)));
        assert_eq!(document.timeouts.request, Some(Quantity::Text("3000ms".to_owned())));
        let scaling = &document.scaling;
        assert_eq!((scaling.min, scaling.max, scaling.initial), (Some(1), Some(100_000), Some(2)));
        crate::detect::check(&document).unwrap();
        let large = maker.document("load-2", &function(10_240, 0), 10_240);
        assert_eq!(large.limits.memory_request, Some(Quantity::Integer(100 << 20)));
        assert_eq!(large.scaling.max, None);
        crate::detect::check(&large).unwrap();
        let program = Maker { code: Some("0".repeat(64)), ..maker }.document("load-3", &function(1, 0), 1);
        assert!(matches!(
            &program.handler,
            HandlerDocument::Http { inherits_listener: true, protocol: ProtocolName::Http1, .. }
        ));
        crate::detect::check(&program).unwrap();
    }
}
