//! Several generator processes as one: agents that generate, and a coordinator that starts them together and joins what
//! they measured.
//!
//! Owns: the [messages](wire) between them over TCP, the [agent's side](agent) and the [coordinator's](fleet). What a job
//! talks to is opaque here (any type that serialises), and how a job is run is the agent's user's business.
//!
//! # Start
//! Each agent has its own monotonic clock. Once all agents are ready (contact made, sockets open), the coordinator asks each
//! clock [`fleet::CLOCK_SAMPLES`] times and takes the answer with the shortest round trip; half of that round trip bounds
//! the error (RFC 5905, section 8, has the same idea). Then it names one moment, in each agent's own clock, at which their
//! schedules start.
//!
//! # What if
//! | | then |
//! |---|---|
//! | an agent fails before the start | no agent starts; the error names it |
//! | an agent fails or vanishes during the run | the others finish; its share is missing, and the result says whose |
//! | an agent's user ends it during the run | it ends the run, and sends what it measured so far |
//! | the coordinator vanishes, or its host or network does without a word | its agents end the run and wait for the next coordinator |
//! | either sends garbage | the connection ends, as if the other had vanished |
//! | whoever comes to an agent says nothing | it is left after [`agent::HELLO_PATIENCE`] |
//! | either is silent, or takes nothing, although its host should answer | after [`wire::SILENCE`] it counts as vanished |
//! | a second coordinator comes | it waits until the first has left |
//!
//! # Trust
//! There is no secret: whoever reaches an agent's port can make it send requests. Bind it where only you reach it.

pub mod agent;
pub mod fleet;
pub mod wire;

#[cfg(test)]
mod tests;
