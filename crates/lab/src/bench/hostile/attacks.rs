//! A service alone, and beside each attacker.
//!
//! Owns the attackers as processes and the figures of each. An attacker that is expelled comes back
//! as soon as it is let in; its user is kept out for a while, so that the time beside it says
//! little about the attack. If this is root, the service is measured again, beside another user
//! after each expulsion. `attack_share` is the part of the time in which the attacker attacked.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwater_iokernel_testing::attack::Attack;
use tailwater_iokernel_testing::child::RawChild;
use tailwater_loadgen::Plan;
use tailwater_testbed::note;
use tailwater_testbed::table::{Table, number};

use super::{Latency, MOST_P50, REACTION, RPS, latency};
use crate::bench::spin::Target;

/// Number of users of attackers that come back as another one.
pub(super) const FRESH_USERS: u32 = 1_000;
/// Time between two looks whether an attacker was expelled.
const LOOK: Duration = Duration::from_millis(2);

/// A service before and during one attack.
#[derive(Debug, Serialize)]
pub(super) struct Attacked {
    name: &'static str,
    /// The attacker came back as another user each time.
    fresh_users: bool,
    before: Latency,
    during: Latency,
    /// Part of the measured time in which the attacker was registered, or needed not be.
    attack_share: f64,
    /// Number of times that it lost its registration.
    expulsions: u32,
    expelled: bool,
    harmless: bool,
}

/// Measures the service beside each of these attackers.
pub(super) fn measure(target: &Target<'_>, attacks: &[Attack], plan: &Plan) -> anyhow::Result<Vec<Attacked>> {
    let mut measured = Vec::new();
    let users = AtomicU32::new(0);
    for &attack in attacks {
        let attacked = beside_one_user(target, attack, plan)?;
        let comes_back = attacked.expelled && rustix::process::geteuid().is_root();
        attacked.announce();
        measured.push(attacked);
        if comes_back {
            let attacked = beside_fresh_users(target, attack, &users, plan)?;
            attacked.announce();
            measured.push(attacked);
        }
    }
    Ok(measured)
}

fn beside_one_user(target: &Target<'_>, attack: Attack, plan: &Plan) -> anyhow::Result<Attacked> {
    let before = latency(target, plan)?;
    let attacker = start(&target.socket, attack, attack.user()).map_err(anyhow::Error::msg)?;
    let (during, attack_share) = beside(target, plan, || attacker.attacked_for())?;
    Ok(Attacked::new(attack, false, (before, during), attack_share, attacker.expulsions()))
}

/// As [`beside_one_user`], with users from this number on.
fn beside_fresh_users(
    target: &Target<'_>,
    attack: Attack,
    users: &AtomicU32,
    plan: &Plan,
) -> anyhow::Result<Attacked> {
    let before = latency(target, plan)?;
    let (turns, stop) = (Mutex::new(Turns::default()), AtomicBool::new(false));
    let socket = target.socket.as_str();
    std::thread::scope(|scope| {
        scope.spawn(|| come_back(socket, attack, users, &turns, &stop));
        let measured = beside(target, plan, || lock(&turns).attacked_for());
        stop.store(true, Ordering::Relaxed);
        let (during, attack_share) = measured?;
        let expulsions = lock(&turns).expulsions;
        Ok(Attacked::new(attack, true, (before, during), attack_share, expulsions))
    })
}

/// Measures the service beside an attacker that attacks, once the IOKernel has had its time.
fn beside(
    target: &Target<'_>,
    plan: &Plan,
    attacked_for: impl Fn() -> Duration,
) -> anyhow::Result<(Latency, f64)> {
    target.testbed.interrupt.sleep_until(Instant::now() + REACTION)?;
    let (began, before) = (Instant::now(), attacked_for());
    // Without a warm-up: all that the attack does from here on counts.
    let during = latency(target, &Plan { warm_up_ns: 0, ..plan.clone() })?;
    let attacked = attacked_for().saturating_sub(before);
    Ok((during, attacked.as_secs_f64() / began.elapsed().as_secs_f64()))
}

/// The attackers of a row.
#[derive(Debug, Default)]
struct Turns {
    attacker: Option<RawChild>,
    /// Of those before.
    before: Duration,
    expulsions: u32,
}

impl Turns {
    fn attacked_for(&self) -> Duration {
        self.before + self.attacker.as_ref().map_or(Duration::ZERO, RawChild::attacked_for)
    }
}

/// Attacks until `stop` is set, as another user after each expulsion.
fn come_back(socket: &str, attack: Attack, users: &AtomicU32, turns: &Mutex<Turns>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let user = Attack::fresh_user(users.load(Ordering::Relaxed) % FRESH_USERS);
        // Its name may not be free yet.
        if let Ok(attacker) = start(socket, attack, user) {
            lock(turns).attacker = Some(attacker);
            users.fetch_add(1, Ordering::Relaxed);
        }
        let is_expelled = || lock(turns).attacker.as_ref().is_none_or(|attacker| attacker.expulsions() > 0);
        while !stop.load(Ordering::Relaxed) && !is_expelled() {
            std::thread::sleep(LOOK);
        }
        let mut turns = lock(turns);
        if let Some(attacker) = turns.attacker.take() {
            turns.before += attacker.attacked_for();
            turns.expulsions += attacker.expulsions();
        }
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts an attacker. Not by path: a newer build may have replaced the file.
fn start(socket: &str, attack: Attack, user: u32) -> Result<RawChild, String> {
    RawChild::attack(Command::new("/proc/self/exe"), socket, attack, user)
}

impl Attacked {
    fn new(
        attack: Attack,
        fresh_users: bool,
        (before, during): (Latency, Latency),
        attack_share: f64,
        expulsions: u32,
    ) -> Self {
        let harmless = during.is_harmless_after(before);
        let expelled = expulsions > 0;
        let name = attack.name();
        Self { name, fresh_users, before, during, attack_share, expulsions, expelled, harmless }
    }

    fn label(&self) -> String {
        let users = if self.fresh_users { ", ever new users" } else { "" };
        format!("{}{users}", self.name)
    }

    fn announce(&self) {
        note!("{}: {}", self.label(), if self.harmless { "harmless" } else { "NOT harmless" });
    }
}

/// Returns a table of the attacks.
pub(super) fn describe(attacks: &[Attacked]) -> String {
    let mut table = Table::new(
        "attack, us | p50 before | p50 | p99 before | p99 | win. p99.9 before | win. p99.9 | \
         lost before | lost | attacked, % | expelled | harmless",
    );
    let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    for attacked in attacks {
        let Attacked { before, during, .. } = attacked;
        let latencies = [
            (before.p50_us, during.p50_us),
            (before.p99_us, during.p99_us),
            (before.win_p999_us, during.win_p999_us),
        ];
        let row = [attacked.label()].into_iter();
        let row = row.chain(latencies.into_iter().flat_map(|(before, during)| [us(before), us(during)]));
        let row = row.chain([before.lost.to_string(), during.lost.to_string()]);
        let row =
            row.chain([format!("{:.0}", attacked.attack_share * 100.0), attacked.expulsions.to_string()]);
        table.row(row.chain([if attacked.harmless { "yes" } else { "no" }.to_owned()]));
    }
    format!(
        "{table}\nA service at {RPS} requests a second. Harmless: the median at most {MOST_P50} times that before, \
         and no request lost, from {} ms after the attack began. Attacked: the part of the time in which the attacker \
         was registered, or needed not be.\n\n",
        REACTION.as_millis()
    )
}
