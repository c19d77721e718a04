//! Several generator processes as one: agents that generate, and a coordinator that starts them
//! together and joins their measurements.
//!
//! Owns the [messages](wire) between them over TCP, the [agent's side](agent) and the
//! [coordinator's](fleet). The target of a job is opaque here (any type that serialises), and the
//! agent's user runs the job.
//!
//! # Start
//! Each agent has its own monotonic clock. Once all agents are ready (contact made, sockets open),
//! the coordinator reads each clock [`fleet::CLOCK_SAMPLES`] times and uses the answer with the
//! shortest round trip; half of that round trip bounds the error (RFC 5905, section 8, has the same
//! idea). Then it names one time, in each agent's own clock, at which their schedules start.
//!
//! # Failures
//! | | then |
//! |---|---|
//! | an agent fails before the start | no agent starts; the error names it |
//! | an agent fails or vanishes during the run | the others finish; its share is missing, and the result names it |
//! | an agent's user ends it during the run | it ends the run, and sends its measurement so far |
//! | the coordinator vanishes, or its host or network does silently | its agents end the run and wait for the next coordinator |
//! | either sends garbage | the connection ends, as if the other had vanished |
//! | a peer connects to an agent and sends nothing | it is dropped after [`agent::HELLO_PATIENCE`] |
//! | either is silent, or reads nothing, although its host should answer | after [`wire::SILENCE`] it counts as vanished |
//! | a second coordinator connects | it waits until the first has left |
//!
//! # Trust
//! There is no secret: any host that reaches an agent's port can make it send requests. Bind it to
//! an address that only trusted hosts reach.

pub mod agent;
pub mod fleet;
pub mod wire;

#[cfg(test)]
mod tests;
