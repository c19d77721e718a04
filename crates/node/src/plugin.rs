//! A device plugin: one resource that pods request in whole numbers.
//!
//! Owns the plugin's socket, its registration at the kubelet, and the answers to the kubelet's
//! calls. A kubelet that starts removes all sockets in its folder and makes its own anew, so a
//! plugin whose socket or whose kubelet's socket is another one than before begins again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::UnixListener;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::Settings;
use crate::api::{
    AllocateRequest, AllocateResponse, Device, Devices, Empty, Given, HEALTHY, KUBELET, Mount, Options,
    PLUGIN, REGISTER, RegisterRequest, UNHEALTHY, VERSION,
};
use crate::watch::{State, States};

/// Time between two looks at the sockets, and between two attempts to register.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Longest wait for the kubelet's answer to a registration.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which resource a plugin has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Cores that are guaranteed to services.
    Core,
    /// Cores' worth of time that services leave over.
    Batch,
}

impl Kind {
    /// Returns the resource's name, as pods request it.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Core => "tailwater.io/core",
            Self::Batch => "tailwater.io/batch-core",
        }
    }

    /// Returns the name of the plugin's socket.
    fn endpoint(self) -> &'static str {
        match self {
            Self::Core => "tailwater-core.sock",
            Self::Batch => "tailwater-batch-core.sock",
        }
    }

    /// Returns the number of devices.
    fn count(self, state: &State) -> u64 {
        match self {
            Self::Core => state.look.for_pods(),
            Self::Batch => state.left_over,
        }
    }
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct Plugin {
    kind: Kind,
    iokernel: PathBuf,
    folder: PathBuf,
    states: States,
}

impl Plugin {
    /// Returns that of a resource.
    #[must_use]
    pub fn new(kind: Kind, settings: &Settings, states: States) -> Self {
        Self { kind, iokernel: settings.iokernel.clone(), folder: settings.folder(), states }
    }

    /// Serves the kubelet of a folder, for ever.
    pub async fn run(self, folder: &Path) -> Infallible {
        let mut reported = None;
        loop {
            if let Err(error) = self.serve(folder).await {
                let error = format!("{error:#}");
                if reported.as_ref() != Some(&error) {
                    eprintln!("tailwater-node: {} is not offered: {error}", self.kind.resource());
                }
                reported = Some(error);
            } else {
                reported = None;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Registers, and serves until a socket is another one.
    async fn serve(&self, folder: &Path) -> anyhow::Result<()> {
        let (kubelet, own) = (folder.join(KUBELET), folder.join(self.kind.endpoint()));
        let registered_at = identity(&kubelet).with_context(|| {
            format!("no kubelet listens at {} (--plugins names its folder)", kubelet.display())
        })?;
        // What a former agent left.
        let _ = std::fs::remove_file(&own);
        let listener =
            UnixListener::bind(&own).with_context(|| format!("cannot listen at {}", own.display()))?;
        let bound = identity(&own);
        let _removed = Removed(own.clone(), bound);
        let server =
            Server::builder().serve_with_incoming(Calls(self.clone()), UnixListenerStream::new(listener));
        let replaced = async {
            self.register(&kubelet).await?;
            eprintln!("tailwater-node: registered {}", self.kind.resource());
            while identity(&kubelet) == Some(registered_at) && identity(&own) == bound {
                sleep(BETWEEN_LOOKS).await;
            }
            Ok(())
        };
        tokio::select! {
            served = server => served.context("cannot serve the kubelet"),
            replaced = replaced => replaced,
        }
    }

    async fn register(&self, kubelet: &Path) -> anyhow::Result<()> {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.kind.endpoint().to_owned(),
            resource_name: self.kind.resource().to_owned(),
            options: Some(Options::default()),
        };
        let call = async {
            let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display()))?;
            let mut client = tonic::client::Grpc::new(endpoint.connect().await?);
            client.ready().await?;
            let path = http::uri::PathAndQuery::from_static(REGISTER);
            let codec = ProstCodec::<RegisterRequest, Empty>::default();
            client.unary(Request::new(request), path, codec).await?;
            Ok::<_, anyhow::Error>(())
        };
        let answered = timeout(PATIENCE, call).await.context("the kubelet does not answer")?;
        answered.context("the kubelet refuses the registration")
    }

    /// Returns the devices, and again whenever they change. Without an IOKernel the last ones are
    /// unhealthy.
    fn devices(&self) -> impl tokio_stream::Stream<Item = Result<Devices, Status>> + Send + use<> {
        let (kind, mut count) = (self.kind, 0);
        let lists = WatchStream::new(self.states.clone()).map(move |state| {
            count = state.as_ref().map_or(count, |state| kind.count(state));
            (count, state.is_some())
        });
        let mut sent = None;
        // The look has more than this list is made of.
        let changed = lists.filter(move |list| sent.replace(*list) != Some(*list));
        changed.map(|(count, is_healthy)| {
            let health = if is_healthy { HEALTHY } else { UNHEALTHY };
            let device = |number| Device { id: format!("{number}"), health: health.to_owned() };
            Ok(Devices { devices: (0..count).map(device).collect() })
        })
    }

    /// Returns what a container gets with so many devices.
    fn give(&self, devices: usize) -> Given {
        let folder = self.folder.display().to_string();
        let mut variables = HashMap::from([
            ("TAILWATER_IOKERNEL".to_owned(), self.iokernel.display().to_string()),
            ("TAILWATER_KTHREADS".to_owned(), devices.to_string()),
        ]);
        match self.kind {
            Kind::Core => variables.insert("TAILWATER_GUARANTEED".to_owned(), devices.to_string()),
            Kind::Batch => variables.insert("TAILWATER_CLASS".to_owned(), "best-effort".to_owned()),
        };
        // The folder: another IOKernel makes another socket there. Linux lets a program connect to
        // a socket of a read-only mount.
        let mount = Mount { container_path: folder.clone(), host_path: folder, read_only: true };
        // What the NRI plugin knows the container by: its author can write variables, too.
        let annotations = HashMap::from([(self.kind.resource().to_owned(), devices.to_string())]);
        Given { variables, mounts: vec![mount], annotations }
    }

    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().strip_prefix(PLUGIN).unwrap_or_default().to_owned();
        match path.as_str() {
            "GetDevicePluginOptions" => {
                let options = service_fn(|_: Request<Empty>| async { Ok(Response::new(Options::default())) });
                Grpc::new(ProstCodec::default()).unary(options, request).await
            }
            "ListAndWatch" => {
                let list = service_fn(move |_: Request<Empty>| {
                    std::future::ready(Ok(Response::new(self.devices())))
                });
                Grpc::new(ProstCodec::default()).server_streaming(list, request).await
            }
            "Allocate" => {
                let allocate = service_fn(move |request: Request<AllocateRequest>| {
                    let wanted = request.into_inner().containers;
                    let containers = wanted.iter().map(|wanted| self.give(wanted.ids.len())).collect();
                    std::future::ready(Ok(Response::new(AllocateResponse { containers })))
                });
                Grpc::new(ProstCodec::default()).unary(allocate, request).await
            }
            _ => Status::unimplemented("tailwater-node has no such call").into_http(),
        }
    }
}

/// The calls of the kubelet.
#[derive(Debug, Clone)]
struct Calls(Plugin);

impl NamedService for Calls {
    const NAME: &'static str = "v1beta1.DevicePlugin";
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = self.0.clone();
        Box::pin(async move { Ok(plugin.answer(request).await) })
    }
}

/// A socket's file, removed at the end unless it is another one by then.
struct Removed(PathBuf, Option<(u64, u64, i64)>);

impl Drop for Removed {
    fn drop(&mut self) {
        if identity(&self.0) == self.1 {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Returns what tells a file from a later one with its name.
fn identity(file: &Path) -> Option<(u64, u64, i64)> {
    let found = std::fs::metadata(file).ok()?;
    Some((found.dev(), found.ino(), found.ctime_nsec()))
}
