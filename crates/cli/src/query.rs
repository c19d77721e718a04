//! Questions to a running IOKernel.

use anyhow::Context;
use serde_json::Value;
use tailwater_shm::control::{ClientMessage, ServerMessage, dial, receive, send};

/// Returns the counters of the IOKernel at `socket`, and the programs registered there.
///
/// # Errors
/// If nothing listens at the socket, or the answer has another form.
pub fn statistics(socket: &str) -> anyhow::Result<Value> {
    let connection = dial(socket)?;
    send(&connection, &ClientMessage::Stats, &[])?;
    match receive::<ServerMessage>(&connection).context("the IOKernel did not answer")?.0 {
        ServerMessage::Stats(statistics) => Ok(statistics),
        other => anyhow::bail!("the IOKernel gave an answer of another kind: {other:?}"),
    }
}
