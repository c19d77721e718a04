//! Messages of the kubelet's device-plugin interface, version v1beta1, that the agent uses.
//!
//! Owns their fields by number, as `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1` numbers them
//! (Kubernetes, "Device Plugins"); written by hand, so that no compiler of such files is needed.
//! Fields that are not here are skipped when they are read.

use std::collections::HashMap;

/// The version that the kubelet compares.
pub const VERSION: &str = "v1beta1";
/// Name of the kubelet's socket in the folder of device plugins.
pub const KUBELET: &str = "kubelet.sock";
/// Path of the call that registers a plugin.
pub const REGISTER: &str = "/v1beta1.Registration/Register";
/// Beginning of the paths of a plugin's calls.
pub const PLUGIN: &str = "/v1beta1.DevicePlugin/";
/// Health of a device that may be allocated.
pub const HEALTHY: &str = "Healthy";
/// Health of one that may not.
pub const UNHEALTHY: &str = "Unhealthy";

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// A plugin makes itself known.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// Name of the plugin's socket in the folder.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource, as pods request it.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// What the plugin can do.
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// Optional calls of a plugin; the agent has none of them.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Options {
    /// It is called before a container starts.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// It has a preference among devices.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Devices {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// One device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Its name.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Devices for the containers of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Wanted>,
}

/// Devices for one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Wanted {
    /// Their names.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// What the containers get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Given>,
}

/// What one container gets.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Given {
    /// Environment.
    #[prost(map = "string, string", tag = "1")]
    pub variables: HashMap<String, String>,
    /// Mounts.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Annotations of the container at the container runtime, which no author of a pod writes.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
}

/// A folder of the node in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// Its place there.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Its place on the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// It cannot be written to.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}
