//! `tailwater iokernel --publish`: Linux passes ports of this machine to programs behind the TAP
//! device, and lets programs reach other machines under its own address.
//!
//! Owns the one table of nftables that does so ([`script`] writes it, [`nft`] applies it), from the
//! start of the IOKernel to its end, and the thread that writes it anew when a program that a rule
//! names registers or ends. Nothing here runs on the polling thread.
//!
//! | event | the table |
//! |---|---|
//! | start, also after a crash | replaced as a whole, in one transaction |
//! | a named program registers, or ends | the same, within [`LOOK`] |
//! | end | removed, unless another process has made it by now |
//! | takeover | left to the successor, which replaces it, or removes it if it publishes nothing |
//! | crash | stays, so that what was published is again as soon as an IOKernel runs; else [`repair`] |
//!
//! The thread is ordered to end before registrations end, and a look at the programs that is later
//! than the order has no effect: an IOKernel that is succeeded does not withdraw names whose
//! programs go over to its successor.
//!
//! After a crash the table stays as it is until all programs that are named have attached again, or
//! [`GRACE`] is over: their addresses are the same.

mod nft;
mod script;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tailwater_iokernel::stats::{RuntimeStats, StatsHandle};
use tailwater_iokernel::{Config, End, Finding, Verdict};
use tailwater_ports::publish::{Published, Target};
use tailwater_ports::tap::TapSpec;

use script::{Network, Rule, table_of};

/// Time between two looks for the programs that are named.
const LOOK: Duration = Duration::from_millis(100);

/// Longest time for which programs are awaited that a table of before a crash leads to.
const GRACE: Duration = Duration::from_secs(5);

/// Time between a failure to write the table and the next try.
const RETRY: Duration = Duration::from_secs(10);

/// What is published, and the network it is in.
#[derive(Debug, Clone)]
pub struct Plan {
    published: Vec<Published>,
    network: Network,
}

impl Plan {
    /// Returns what this configuration publishes; `None` if nothing.
    ///
    /// # Errors
    /// If it is wrong by itself.
    pub fn new(config: &Config) -> anyhow::Result<Option<Self>> {
        let published = config.ports.published()?;
        let Some(words) = config.ports.tap.as_ref().filter(|_| !published.is_empty()) else {
            return Ok(None);
        };
        let device = words.parse::<TapSpec>()?.name;
        let network = Network::new(device, config)?;
        for rule in &published {
            if let Target::Ip(ip) = rule.target {
                ensure!(
                    network.contains(ip),
                    "port publish: `{rule}`: {ip} is no address of a program in {}",
                    network.describe()
                );
            }
        }
        Ok(Some(Self { published, network }))
    }

    /// Checks that the table could be made, without making it.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn check(&self) -> anyhow::Result<()> {
        nft::check(&self.script(&self.resolve(|_| None)))
    }

    /// Makes the table, and keeps it right until [`Publisher::end`].
    ///
    /// # Errors
    /// If a thread cannot be made. A table that cannot is logged: the IOKernel may have taken over
    /// already, and goes on.
    pub fn start(self, stats: StatsHandle) -> anyhow::Result<Publisher> {
        if let Some(caution) = forwarding() {
            tracing::warn!("{caution}");
        }
        let mut keeper = Keeper::new(self, stats);
        let programs = keeper.stats.runtimes();
        keeper.look_or_log(&programs);
        let (orders, given) = channel();
        let thread = std::thread::Builder::new()
            .name("tailwater-nat".to_owned())
            .spawn(move || keeper.run(&given))
            .context("cannot start a thread")?;
        Ok(Publisher { orders, thread })
    }

    fn describe(&self) -> String {
        self.published.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    fn table(&self) -> String {
        table_of(&self.network.device)
    }

    /// Returns the names that no program has; `find` looks one up.
    fn missing(&self, find: impl Fn(&str) -> Option<Ipv4Addr>) -> Vec<&str> {
        let names = self.published.iter().filter_map(|rule| match &rule.target {
            Target::Name(name) => Some(&**name),
            Target::Ip(_) => None,
        });
        names.filter(|name| find(name).is_none()).collect()
    }

    /// Returns the rules that lead to a program; `find` looks one up by its name.
    fn resolve(&self, find: impl Fn(&str) -> Option<Ipv4Addr>) -> Vec<Rule> {
        let mut rules = Vec::new();
        for published in &self.published {
            let ip = match &published.target {
                Target::Ip(ip) => Some(*ip),
                Target::Name(name) => find(name).map(IpAddr::V4),
            };
            let other = ip.and_then(|ip| self.network.other_family(ip));
            rules.extend(ip.into_iter().chain(other).map(|ip| Rule::new(published, ip)));
        }
        rules
    }

    fn script(&self, rules: &[Rule]) -> String {
        script::write(&self.network, rules, &nft::Maker::this_process().to_string())
    }
}

/// The table while an IOKernel runs.
#[derive(Debug)]
pub struct Publisher {
    orders: Sender<End>,
    thread: JoinHandle<()>,
}

impl Publisher {
    /// Returns what orders the thread to end, without waiting: to be called before registrations
    /// end. The table is removed unless a successor takes it over.
    pub fn orders(&self) -> impl FnOnce(End) + Send + use<> {
        let orders = self.orders.clone();
        move |end| {
            // Fails only if the thread has panicked, which it has reported itself.
            let _ = orders.send(end);
        }
    }

    /// Waits until the thread has ended; without an order before, the table is removed.
    pub fn end(self) {
        self.orders()(End::Stopped);
        // Fails only if the thread has panicked, as above.
        let _ = self.thread.join();
    }
}

/// What keeps the table right.
struct Keeper {
    plan: Plan,
    stats: StatsHandle,
    began: Instant,
    /// The table is one of before a crash.
    keeps_before: bool,
    applied: Option<Vec<Rule>>,
    /// Not before this time, after a failure.
    next_try: Instant,
}

impl Keeper {
    fn new(plan: Plan, stats: StatsHandle) -> Self {
        let keeps_before = nft::holds(&plan.table()).unwrap_or(false);
        let began = Instant::now();
        Self { plan, stats, began, keeps_before, applied: None, next_try: began }
    }

    /// Keeps the table until the order to end.
    fn run(mut self, orders: &Receiver<End>) {
        let mut programs = None;
        let end = loop {
            // Registrations end after the order: programs that are looked up before it are there.
            let wait = if programs.is_some() { Duration::ZERO } else { LOOK };
            match orders.recv_timeout(wait) {
                Ok(end) => break Some(end),
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => match programs.take() {
                    None => programs = Some(self.stats.runtimes()),
                    Some(programs) => self.look_or_log(&programs),
                },
            }
        };
        if end == Some(End::Stopped)
            && let Err(error) = nft::delete_own(&self.plan.table())
        {
            let error = format!("{error:#}");
            tracing::error!(error, "the published ports stay; `tailwater doctor --repair` removes them");
        }
    }

    fn look_or_log(&mut self, programs: &[Arc<RuntimeStats>]) {
        if let Err(error) = self.look(programs) {
            let error = format!("{error:#}");
            tracing::error!(error, "the published ports stay as they were; next try in {RETRY:?}");
            self.next_try = Instant::now() + RETRY;
        }
    }

    /// Writes the table anew if other programs are behind the ports than before.
    fn look(&mut self, programs: &[Arc<RuntimeStats>]) -> anyhow::Result<()> {
        let find =
            |name: &str| programs.iter().find(|program| program.name == name).map(|program| program.ip);
        let missing = self.plan.missing(find);
        if self.keeps_before && !missing.is_empty() && self.began.elapsed() < GRACE {
            return Ok(());
        }
        self.keeps_before = false;
        let rules = self.plan.resolve(find);
        if self.applied.as_ref() == Some(&rules) || Instant::now() < self.next_try {
            return Ok(());
        }
        nft::apply(&self.plan.script(&rules))?;
        let ports: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let (ports, waiting) = (ports.join(" "), missing.join(" "));
        tracing::info!(ports, waiting, "published");
        self.applied = Some(rules);
        Ok(())
    }
}

/// Judges what this configuration publishes, for another machine than this one.
pub fn examine_text(config: &Config) -> Option<Finding> {
    let judged = Plan::new(config).transpose()?.map(|plan| (Verdict::Ok, plan.describe()));
    Some(finding(judged))
}

/// Judges whether this machine can publish what this configuration does.
pub fn examine(config: &Config) -> Option<Finding> {
    let plan = Plan::new(config).transpose()?;
    Some(finding(plan.and_then(|plan| {
        plan.check()?;
        Ok(match forwarding() {
            None => (Verdict::Ok, plan.describe()),
            Some(caution) => (Verdict::Caution, format!("{}; {caution}", plan.describe())),
        })
    })))
}

fn finding(judged: anyhow::Result<(Verdict, String)>) -> Finding {
    let refused = |error| (Verdict::Refused, format!("{error:#}"));
    let (verdict, found) = judged.unwrap_or_else(refused);
    Finding { subject: "published ports", verdict, found }
}

/// Removes what a predecessor has published behind this configuration's device, which publishes
/// nothing.
pub fn withdraw(config: &Config) {
    let device = config.ports.tap.as_ref().and_then(|words| words.parse::<TapSpec>().ok());
    let Some(table) = device.map(|spec| table_of(&spec.name)) else { return };
    // Without nft there was nothing published.
    if nft::holds(&table).unwrap_or(false)
        && let Err(error) = nft::delete(&table)
    {
        let error = format!("{error:#}");
        tracing::error!(
            error,
            "what the IOKernel before published stays; `tailwater doctor --repair` removes it"
        );
    }
}

/// Removes the tables of IOKernels that were killed, and says which. As a unit's `ExecStopPost`
/// after a crash, which systemd tells by a `SERVICE_RESULT` other than `success`, removes none:
/// systemd starts the IOKernel again, and what was published stays until then.
///
/// # Errors
/// Why one stays.
pub fn repair() -> Result<String, String> {
    let ended = std::env::var("SERVICE_RESULT").unwrap_or_default();
    if !matches!(&*ended, "" | "success") {
        return Ok(format!(
            "published ports: any that there are stay for the next start of the service (SERVICE_RESULT={ended})"
        ));
    }
    nft::repair().map_err(|error| format!("published ports: {error:#}"))
}

/// Returns what prevents other machines from reaching published ports, with the remedy.
fn forwarding() -> Option<String> {
    let is_off = |file: &str| std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "0");
    let off: Vec<&str> = [
        ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward=1"),
        ("/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding=1"),
    ]
    .into_iter()
    .filter_map(|(file, setting)| is_off(file).then_some(setting))
    .collect();
    (!off.is_empty()).then(|| {
        format!(
            "Linux does not forward packets of all families, so published ports are reached from this machine only until \
             `sysctl -w {}`",
            off.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(publish: &[&str]) -> anyhow::Result<Option<Plan>> {
        let mut config = Config::default();
        config.ports.tap = Some("tw0".to_owned());
        config.ports.publish = publish.iter().map(|&text| text.to_owned()).collect();
        Plan::new(&config)
    }

    #[test]
    fn a_name_leads_to_both_addresses_of_its_program_once_there_is_one() {
        let plan = plan(&["tcp:6379=kv", "udp:53=10.77.0.3", "tcp:80=[fd00:7477::4]:8080"]).unwrap().unwrap();
        assert_eq!(plan.table(), "tailwater/tw0");
        let shown = |find: &dyn Fn(&str) -> Option<Ipv4Addr>| {
            plan.resolve(find).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let addresses = ["udp:53=10.77.0.3:53", "udp:53=[fd00:7477::3]:53", "tcp:80=[fd00:7477::4]:8080"];
        assert_eq!(shown(&|_| None), addresses);
        let kv = |name: &str| (name == "kv").then_some(Ipv4Addr::new(10, 77, 0, 9));
        assert_eq!(shown(&kv)[..2], ["tcp:6379=10.77.0.9:6379", "tcp:6379=[fd00:7477::9]:6379"]);
        assert_eq!(plan.missing(|_| None), ["kv"]);
        assert_eq!(plan.missing(kv), [""; 0]);
    }

    #[test]
    fn what_cannot_be_published_is_refused_with_the_reason() {
        assert!(plan(&[]).unwrap().is_none());
        for (text, part) in [
            ("tcp:80=10.78.0.2", "no address of a program in 10.77.0.0/16"),
            ("tcp:80=[fd00:7478::2]:80", "fd00:7477::/64"),
            ("tcp:80", "tcp:6379=NAME"),
        ] {
            let error = format!("{:#}", plan(&[text]).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
        let mut config = Config::default();
        config.ports.publish = vec!["tcp:80=kv".to_owned()];
        assert!(Plan::new(&config).unwrap_err().to_string().contains("give --tap"));
        config.ports.tap = Some("tw\"0".to_owned());
        assert!(Plan::new(&config).unwrap_err().to_string().contains("letters"));
    }
}
