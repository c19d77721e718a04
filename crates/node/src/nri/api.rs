//! Messages of NRI (`nri.pkg.api.v1alpha1`) and of ttrpc, as far as the plugin reads and writes
//! them.
//!
//! Owns their fields by number (containerd/nri, `pkg/api/api.proto`; containerd/ttrpc); written by
//! hand, as [`crate::api`].

use std::collections::HashMap;

/// The service of the container runtime.
pub const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
/// Its call for a plugin that begins.
pub const REGISTER: &str = "RegisterPlugin";
/// Its call for limits that it has not asked for. The message is [`UpdateResponse`].
pub const UPDATE: &str = "UpdateContainers";
/// The number of the event that a container has started.
pub const STARTED: i32 = 7;
/// The events that the plugin is called for, as bits of a set: a container is created (number 4),
/// has started, and its limits are changed (8).
pub const EVENTS: i32 = 1 << 3 | 1 << (STARTED - 1) | 1 << 7;
/// The state of a container that has not started (`CONTAINER_CREATED`).
pub const CREATED: i32 = 1;
/// `INVALID_ARGUMENT` (gRPC status codes): the message cannot be decoded.
pub const INVALID_ARGUMENT: i32 = 3;
/// `UNIMPLEMENTED` (gRPC status codes).
pub const UNIMPLEMENTED: i32 = 12;
/// `IOPRIO_CLASS_IDLE`, as NRI numbers it.
pub const IDLE: i32 = 3;

/// A call (ttrpc).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Its call.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The call's message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

/// The answer to a call (ttrpc).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// Why it failed.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The answer's message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// Why a call failed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    /// The number.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// A message for a person.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A plugin makes itself known.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterPlugin {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Two digits by which plugins are ordered.
    #[prost(string, tag = "2")]
    pub index: String,
}

/// Answer to `Configure`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ConfigureResponse {
    /// The events that the plugin is called for.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// The pods and containers that there are.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Synchronize {
    /// Pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
    /// Containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// Others follow in a further call.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Answer to [`Synchronize`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Synchronized {
    /// What becomes of the limits of containers; none while others may follow.
    #[prost(message, repeated, tag = "1")]
    pub updates: Vec<Update>,
    /// Others may follow.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// An event, as told by a container runtime that has no call for it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StateChange {
    /// Its number.
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// The pod.
    #[prost(message, optional, tag = "2")]
    pub pod: Option<Pod>,
    /// The container, if it is one's.
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

/// A container is about to be created, has started, or its limits are about to be changed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerRequest {
    /// Its pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<Pod>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    /// Its number at the container runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its annotations.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// Its number at the container runtime.
    #[prost(string, tag = "1")]
    pub id: String,
    /// That of its pod.
    #[prost(string, tag = "2")]
    pub pod: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its state, such as [`CREATED`].
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Its annotations: what device plugins gave with its devices, and others.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
    /// Its environment, `NAME=VALUE`.
    #[prost(string, repeated, tag = "8")]
    pub variables: Vec<String>,
}

/// Answer to `CreateContainer`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateResponse {
    /// What is changed.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<Adjustment>,
}

/// Answer to `UpdateContainer`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateResponse {
    /// What becomes of the limits: those that are not here are set as they were requested.
    #[prost(message, repeated, tag = "1")]
    pub updates: Vec<Update>,
}

/// Limits of a container that exists.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Update {
    /// Its number at the container runtime.
    #[prost(string, tag = "1")]
    pub container: String,
    /// What Linux gives it.
    #[prost(message, optional, tag = "2")]
    pub linux: Option<UpdateLinux>,
}

/// What Linux gives a container that exists.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateLinux {
    /// Limits.
    #[prost(message, optional, tag = "1")]
    pub resources: Option<Resources>,
}

/// Changes of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Adjustment {
    /// Environment besides.
    #[prost(message, repeated, tag = "4")]
    pub variables: Vec<Variable>,
    /// What Linux gives it.
    #[prost(message, optional, tag = "6")]
    pub linux: Option<Linux>,
}

/// A variable of the environment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Variable {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What Linux gives a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Linux {
    /// Limits.
    #[prost(message, optional, tag = "2")]
    pub resources: Option<Resources>,
    /// Priority of its input and output.
    #[prost(message, optional, tag = "5")]
    pub io_priority: Option<IoPriority>,
}

/// Limits.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resources {
    /// Of processor time.
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<Cpu>,
    /// Files of its control group of version 2.
    #[prost(map = "string, string", tag = "6")]
    pub unified: HashMap<String, String>,
}

/// Limits of processor time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Cpu {
    /// Weight among others, as in version 1 of control groups; 0: it is not set.
    #[prost(message, optional, tag = "1")]
    pub shares: Option<Number>,
    /// Microseconds of each period; -1: as many as there are.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Number>,
    /// The cores that it may use.
    #[prost(string, tag = "6")]
    pub cpus: String,
}

/// A number that may be left out.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Number {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// Priority of input and output.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IoPriority {
    /// [`IDLE`].
    #[prost(int32, tag = "1")]
    pub class: i32,
}
