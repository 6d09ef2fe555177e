//! A sandbox never has more requests in user code than its function's concurrency, whoever still waits for them.

use crate::world::World;

pub(super) fn after_event(world: &World<'_>) -> Option<String> {
    world.did.sandboxes.iter().find_map(|(node, sandbox)| {
        let body = world.nodes.get(node.0 as usize - 1)?.machine.bodies.get(sandbox)?;
        let running = body.running.len();
        (running > body.concurrency as usize)
            .then(|| format!("{sandbox} on {node} runs {running} requests with {} slots", body.concurrency))
    })
}
