use super::returning::MAX_GROUPS;
use super::*;
use tailwater_shm::control::{Instance, ProgramClass};

const ROOT: &User = &User { uid: 0, owner: 0, groups: Vec::new(), privileged: true };

/// Every user may register anything within the limits of all users.
fn everyone() -> Authority {
    let grant = "[[grant]]\nusers = \"*\"\nclasses = [\"latency-critical\", \"best-effort\"]\nguaranteed = 4";
    Authority::resolve(&Config::from_toml(grant).unwrap()).unwrap()
}

/// Programs at 10.77.0.9 have MAC address 02:00:00:00:00:09.
/// Returns what makes users, of whom some need no grant.
fn user_of(privileged: impl Fn(u32) -> bool) -> impl Fn(u32, Vec<u32>) -> User {
    move |uid, groups| User { uid, owner: uid, groups, privileged: privileged(uid) }
}

fn directory() -> Directory {
    let config = Config::from_toml(
        "max-runtimes = 8\nmax-kthreads = 16\n[macs]\n\"10.77.0.9\" = \"02:00:00:00:00:09\"",
    );
    Directory::new(&config.unwrap(), Authority::default(), 4, u64::MAX)
}

fn request(name: &str) -> Register {
    Register {
        version: Version::OWN.0,
        name: name.to_owned(),
        kthreads: 2,
        guaranteed: 1,
        class: ProgramClass::LatencyCritical,
        ring_bytes: 1 << 16,
        ip: None,
        returns: false,
        instance: Instance::Only,
        listen: Vec::new(),
    }
}

/// Finds the threads of a process of the IOKernel's PID namespace.
fn same(tids: &[i32]) -> Result<Vec<i32>, Refusal> {
    Ok(tids.to_vec())
}

#[test]
fn places_are_distinct_and_used_again_after_release() {
    let mut directory = directory();
    let a = directory.admit(ROOT, &request("a")).unwrap();
    let b = directory.admit(ROOT, &request("b")).unwrap();
    assert!(a.id != b.id && a.ip != b.ip && a.mac != b.mac);
    directory.release(a.id);
    let c = directory.admit(ROOT, &request("a")).unwrap();
    assert_eq!(c.id, a.id);
}

#[test]
fn programs_that_choose_no_address_leave_the_lower_half_to_those_that_do() {
    let mut directory = directory();
    let jobs = ["a", "b", "c"].map(|name| directory.admit(ROOT, &request(name)).unwrap().ip);
    assert!(jobs.iter().all(|&ip| ip > Ipv4Addr::new(10, 77, 128, 0)), "{jobs:?}");
    let service = Register { ip: Some([10, 77, 0, 2].into()), ..request("service") };
    assert_eq!(directory.admit(ROOT, &service).unwrap().ip, Ipv4Addr::new(10, 77, 0, 2));
}

#[test]
fn programs_have_places_in_a_row_at_the_board_of_which_gaps_are_used_again() {
    let mut directory = directory();
    let of = |directory: &mut Directory, name: &str, kthreads: u16| {
        directory.admit(ROOT, &Register { kthreads, ..request(name) }).unwrap()
    };
    let [a, b, c] = [("a", 2), ("b", 3), ("c", 1)].map(|(name, count)| of(&mut directory, name, count));
    assert_eq!([&a, &b, &c].map(|place| place.first_place), [Some(0), Some(2), Some(5)]);
    directory.release(b.id);
    assert_eq!(of(&mut directory, "d", 4).first_place, Some(6), "the gap is too small");
    assert_eq!(of(&mut directory, "e", 3).first_place, Some(2));
    let next = succeed(&directory);
    assert!(next.entries.values().all(|entry| entry.place.first_place.is_none()), "it has another board");
    assert_eq!([4096, 4087].map(|count| directory.vacant_places(count)), [None, None]);
    assert_eq!(directory.vacant_places(4086), Some(10));
}

#[test]
fn a_program_is_found_by_its_name_from_its_greeting_to_its_end() {
    let mut directory = directory();
    let id = directory.admit(ROOT, &request("a")).unwrap().id;
    assert_eq!(directory.named("a"), None, "it has announced no threads yet");
    directory.accept_kthreads(id, &[11, 12], same).unwrap();
    assert_eq!(directory.named("a"), None, "the polling thread may not have it yet");
    directory.settle(id);
    assert_eq!(directory.named("a"), Some(Named { id, uid: 0, kthreads: 2, guaranteed: 1 }));
    assert_eq!(directory.named("b"), None);
    directory.release(id);
    assert_eq!(directory.named("a"), None);
}

#[test]
fn a_mac_address_follows_from_the_address_or_the_configuration_and_a_ports_own_is_never_given() {
    let mut directory = directory();
    let at = |name: &str, host| Register { ip: Some([10, 77, 0, host].into()), ..request(name) };
    let derived = directory.admit(ROOT, &at("a", 8)).unwrap();
    assert_eq!(derived.mac, MacAddr::derived(derived.ip));
    let configured = directory.admit(ROOT, &at("b", 9)).unwrap();
    assert_eq!(configured.mac, MacAddr([2, 0, 0, 0, 0, 9]));
    directory.release(configured.id);
    assert!(directory.reserve("tap0", None, Some(configured.mac)));
    let why = directory.admit(ROOT, &at("b", 9)).unwrap_err().to_string();
    assert!(why.contains("port tap0") && why.contains("`macs`"), "{why}");
}

#[test]
fn addresses_of_linux_and_its_routers_are_no_programs_in_either_family() {
    let mut directory = directory();
    let first: Ipv4Addr = directory.config.first_pool_address();
    let linux6: IpAddr = "fd00:7477::7".parse().unwrap();
    directory.set_taken(HashSet::from([first.into(), linux6]));
    let at = |host| Register { ip: Some([10, 77, 0, host].into()), ..request("chooses") };
    let why = directory.admit(ROOT, &at(7)).unwrap_err().to_string();
    assert!(why.contains("10.77.0.7") && why.contains("Linux"), "{why}");
    assert_ne!(directory.admit(ROOT, &request("of the pool")).unwrap().ip, first);
    directory.set_taken(HashSet::new());
    let place = directory.admit(ROOT, &at(7)).unwrap();
    let changed = directory.take_changed().expect("programs were registered");
    for ip in [place.ip.into(), linux6, place.mac.link_local().into()] {
        assert!(changed.contains(&ip), "{ip} {changed:?}");
    }
    assert_eq!(directory.take_changed(), None);
    directory.release(place.id);
    assert!(directory.take_changed().is_some_and(|changed| !changed.contains(&linux6)));
}

#[test]
fn shared_memory_is_limited_for_each_user_for_all_others_and_in_total() {
    let one = RegionSpec::new(2, 1 << 16).unwrap().region_len() as u64;
    let config = Config { max_runtimes: 100, max_region_bytes: Some(16 * one), ..Config::default() };
    let mut directory = Directory::new(&config, everyone(), 4, 0);
    let free = |name: &str| Register { guaranteed: 0, ..request(name) };
    let mut admitted = |uid: u32, privileged: bool| {
        let mut places = Vec::new();
        let refused = loop {
            let name = format!("{uid}-{}", places.len());
            match directory.admit(&User { uid, owner: uid, groups: Vec::new(), privileged }, &free(&name)) {
                Ok(place) => places.push(place),
                Err(refusal) => break refusal.to_string(),
            }
            assert!(places.len() <= 16, "no limit");
        };
        (places.len(), refused)
    };
    let (of_one, why) = admitted(1000, false);
    assert_eq!(of_one, 4);
    let told =
        format!("programs of user 1000, and of its subordinate ids, have {} of at most {}", 4 * one, 4 * one);
    assert!(why.contains(&told) && why.contains("\"1000-0\"") && why.contains("max-region-bytes"), "{why}");
    assert_eq!((admitted(1001, false).0, admitted(1002, false).0), (4, 4));
    let (more, why) = admitted(1003, false);
    assert!(more == 0 && why.contains("users without rights"), "{more}: {why}");
    let (reserve, why) = admitted(0, true);
    assert!(reserve == 4 && why.contains("all programs have"), "{reserve}: {why}");
    // What a program had can be given to others.
    let of_a_user: Vec<RuntimeId> =
        directory.entries.iter().filter(|(_, e)| e.user.uid == 1000).map(|(id, _)| *id).collect();
    of_a_user.into_iter().for_each(|id| drop(directory.release(id)));
    directory
        .admit(&User { uid: 1003, owner: 1003, groups: Vec::new(), privileged: false }, &free("new"))
        .unwrap();
    // Unless configured, a quarter of the machine's memory.
    let mut small = Directory::new(&Config::default(), Authority::default(), 4, 4 * one);
    small.admit(ROOT, &free("first")).unwrap();
    assert!(
        matches!(small.admit(ROOT, &free("second")), Err(Refusal::RegionBytes { held, .. }) if held == one)
    );
}

#[test]
fn grants_count_what_their_programs_have_and_a_new_configuration_counts_it_again() {
    let authority = |text: &str| {
        let config = Config::from_toml(text).unwrap();
        (Authority::resolve(&config).unwrap(), config)
    };
    let grant = "[[grant]]\nusers = 1000\nguaranteed = 1\nclasses = [\"latency-critical\"]\n";
    let (one, config) = authority(grant);
    let mut directory = Directory::new(&config, one, 4, u64::MAX);
    let user = User { uid: 1000, owner: 1000, groups: Vec::new(), privileged: false };
    let first = directory.admit(&user, &request("first")).unwrap();
    let refused =
        |directory: &mut Directory| directory.admit(&user, &request("another")).unwrap_err().to_string();
    assert!(refused(&mut directory).contains("have 1 of at most 1"));
    // The same grant is the second one now, and larger.
    let other = "max-kthreads = 2\n[[grant]]\nusers = 7\n";
    let (more, config) = authority(&format!("{other}{}", grant.replace("guaranteed = 1", "guaranteed = 2")));
    directory.reload(&config, more);
    let second = directory.admit(&user, &request("second")).unwrap();
    assert!(refused(&mut directory).contains("have 2 of at most 2"));
    let wide = directory.admit(ROOT, &Register { kthreads: 3, guaranteed: 0, ..request("third") });
    assert!(matches!(wide, Err(Refusal::Kthreads { most: 2, .. })));
    directory.release(first.id);
    directory.release(second.id);
    directory.admit(&user, &request("second")).unwrap();
    // Without its grant the program stays, and another is refused.
    let (none, config) = authority("");
    directory.reload(&config, none);
    assert!(directory.entries.values().any(|entry| entry.request.name == "second"));
    assert!(directory.admit(&user, &request("third")).unwrap_err().to_string().contains("no [[grant]]"));
}

#[test]
fn a_new_configuration_fills_grants_in_the_order_of_registration() {
    let text = "[[grant]]\nusers = [7, 1000]\nprograms = 1\n[[grant]]\nusers = 1000\nprograms = 1";
    let config = Config::from_toml(text).unwrap();
    let authority = Authority::resolve(&config).unwrap();
    let mut directory = Directory::new(&config, authority.clone(), 4, u64::MAX);
    let user = User { uid: 1000, owner: 1000, groups: Vec::new(), privileged: false };
    let job = |name: &str| Register { guaranteed: 0, class: ProgramClass::BestEffort, ..request(name) };
    directory.admit(&user, &job("first")).unwrap();
    directory.admit(&user, &job("second")).unwrap();
    for _ in 0..2 {
        assert!(matches!(directory.admit(&user, &job("third")), Err(Refusal::Denied(_))));
        directory.reload(&config, authority.clone());
    }
}

#[test]
fn addresses_that_a_grant_lists_are_given_to_programs_that_choose_them_only() {
    let text = "prefix-len = 28\npool-start = \"10.77.0.2\"\n[[grant]]\nusers = 7\naddresses = [\"10.77.0.2\", \"10.77.0.8/29\"]";
    let config = Config::from_toml(text).unwrap();
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
    let free = |name: &str| Register { guaranteed: 0, ..request(name) };
    let hosts: Vec<u8> = (0..6)
        .map_while(|n| directory.admit(ROOT, &free(&n.to_string())).ok())
        .map(|place| place.ip.octets()[3])
        .collect();
    assert_eq!(hosts, [3, 4, 5, 6, 7]);
    assert_eq!(directory.admit(ROOT, &free("more")), Err(Refusal::PoolExhausted));
    directory.admit(ROOT, &Register { ip: Some([10, 77, 0, 9].into()), ..free("chosen") }).unwrap();
}

#[test]
fn every_request_that_cannot_be_granted_is_refused_for_its_own_reason() {
    let mut directory = directory();
    assert!(directory.reserve("tap0", Some([10, 77, 0, 1].into()), Some(MacAddr([2, 0, 0, 0, 0, 9]))));
    let taken = directory.admit(ROOT, &request("taken")).unwrap();
    type Change = fn(&mut Register);
    type Expect = fn(&Refusal) -> bool;
    let cases: [(Change, Expect); 15] = [
        (|w| w.version += 1, |r| matches!(r, Refusal::Version { .. })),
        (|w| w.name = String::new(), |r| matches!(r, Refusal::NameInvalid(_))),
        (|w| w.name = "x".repeat(65), |r| matches!(r, Refusal::NameInvalid(_))),
        (|w| w.name = "a\nb".into(), |r| matches!(r, Refusal::NameInvalid(_))),
        (|w| w.name = "taken ".into(), |r| matches!(r, Refusal::NameInvalid(_))),
        (|w| w.name = "taken".into(), |r| matches!(r, Refusal::NameTaken(_))),
        (|w| w.kthreads = 0, |r| matches!(r, Refusal::Kthreads { .. })),
        (|w| w.kthreads = 17, |r| matches!(r, Refusal::Kthreads { .. })),
        (|w| w.guaranteed = 3, |r| matches!(r, Refusal::GuaranteeOverKthreads { .. })),
        (
            |w| (w.kthreads, w.guaranteed) = (4, 4),
            |r| matches!(r, Refusal::GuaranteeOversubscribed { taken: 1, .. }),
        ),
        (|w| w.ring_bytes = 1000, |r| matches!(r, Refusal::Shape(_))),
        (|w| w.ring_bytes = 1 << 23, |r| matches!(r, Refusal::RingBytes { .. })),
        (|w| w.ip = Some([10, 78, 0, 2].into()), |r| matches!(r, Refusal::AddressOutside { .. })),
        (|w| w.ip = Some([10, 77, 0, 1].into()), |r| matches!(r, Refusal::AddressTaken { .. })),
        (|w| w.ip = Some([10, 77, 0, 9].into()), |r| matches!(r, Refusal::MacTaken { .. })),
    ];
    for (number, (change, expect)) in cases.into_iter().enumerate() {
        let mut request = request("new");
        change(&mut request);
        let refusal = directory.admit(ROOT, &request).unwrap_err();
        assert!(expect(&refusal), "case {number}: {refusal}");
    }
    let same = Register { ip: Some(taken.ip), ..request("other") };
    let text = directory.admit(ROOT, &same).unwrap_err().to_string();
    assert!(text.contains("taken"), "the owner is not named: {text}");
    directory.admit(ROOT, &request("new")).unwrap();
}

#[test]
fn limits_on_runtimes_and_kthreads_hold() {
    let mut directory = directory();
    let free = |name: &str| Register { guaranteed: 0, ..request(name) };
    for i in 0..8 {
        directory.admit(ROOT, &free(&i.to_string())).unwrap();
    }
    assert_eq!(directory.admit(ROOT, &free("ninth")), Err(Refusal::TooManyRuntimes(8)));
    let mut directory = Directory::new(
        &Config { max_runtimes: 1000, ..Config::default() },
        Authority::default(),
        4,
        u64::MAX,
    );
    for i in 0..16 {
        directory.admit(ROOT, &Register { kthreads: 255, ..free(&i.to_string()) }).unwrap();
    }
    assert_eq!(
        directory.admit(ROOT, &Register { kthreads: 17, ..free("x") }),
        Err(Refusal::NoKthreads { asked: 17, left: 16 })
    );
}

#[test]
fn a_small_pool_runs_dry_and_recovers() {
    let config = Config { network: [10, 9, 0, 0].into(), prefix_len: 30, ..Config::default() };
    let mut directory = Directory::new(&config, everyone(), 4, u64::MAX);
    let a = directory.admit(ROOT, &request("a")).unwrap();
    assert_eq!(a.ip, Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!(directory.admit(ROOT, &request("b")), Err(Refusal::PoolExhausted));
    directory.release(a.id);
    assert_eq!(directory.admit(ROOT, &request("b")).unwrap().ip, a.ip);
}

#[test]
fn threads_must_be_the_peers_own_and_nobody_elses() {
    let mut directory = directory();
    let (a, b) =
        (directory.admit(ROOT, &request("a")).unwrap(), directory.admit(ROOT, &request("b")).unwrap());
    let count = Refusal::ThreadCount { found: 1, expected: 2 };
    assert_eq!(directory.accept_kthreads(a.id, &[5], |_| panic!("nothing is looked for")), Err(count));
    let foreign = Refusal::ForeignThread { tid: 100, pid: 1 };
    assert_eq!(directory.accept_kthreads(a.id, &[5, 100], |_| Err(foreign.clone())), Err(foreign.clone()));
    assert_eq!(directory.accept_kthreads(a.id, &[5, 5], same), Err(Refusal::ThreadTaken(5)));
    directory.accept_kthreads(a.id, &[5, 6], same).unwrap();
    assert_eq!(directory.accept_kthreads(b.id, &[6, 7], same), Err(Refusal::ThreadTaken(6)));
    directory.release(a.id);
    directory.accept_kthreads(b.id, &[6, 7], same).unwrap();
}

#[test]
fn programs_of_two_pid_namespaces_may_call_their_threads_alike() {
    let mut directory = directory();
    let (a, b) =
        (directory.admit(ROOT, &request("a")).unwrap(), directory.admit(ROOT, &request("b")).unwrap());
    assert_eq!(directory.accept_kthreads(a.id, &[5, 6], |_| Ok(vec![105, 106])), Ok(vec![105, 106]));
    assert_eq!(
        directory.accept_kthreads(b.id, &[5, 6], |_| Ok(vec![106, 107])),
        Err(Refusal::ThreadTaken(5))
    );
    assert_eq!(directory.accept_kthreads(b.id, &[5, 6], |_| Ok(vec![205, 206])), Ok(vec![205, 206]));
}

#[test]
fn a_name_has_printable_ascii_characters_and_no_outer_blanks() {
    let mut directory = directory();
    // Zero width, bidirectional, separators, controls, another script's `a`, a filler, a blank.
    for other in
        "\u{200b}\u{200d}\u{feff}\u{202e}\u{2066}\u{2028}\u{a0}\u{ad}\t\n\u{1b}\u{7f}\u{430}\u{3164}".chars()
    {
        for name in [format!("web{other}"), format!("{other}web"), format!("w{other}eb")] {
            let refused = directory.admit(ROOT, &Register { name, ..request("") }).unwrap_err();
            assert!(matches!(refused, Refusal::NameInvalid(_)), "{other:?}");
            assert!(refused.to_string().is_ascii(), "{refused}");
        }
    }
    for name in ["web", "a b", "x~1/{2}", &"x".repeat(64)] {
        let free = Register { guaranteed: 0, ..request(name) };
        let place = directory.admit(ROOT, &free).unwrap();
        directory.release(place.id);
    }
}

/// Registers a program, with its threads.
fn register(directory: &mut Directory, user: &User, request: &Register, tids: &[i32]) -> Assignment {
    let place = directory.admit(user, request).unwrap();
    directory.accept_kthreads(place.id, tids, same).unwrap();
    place
}

#[test]
fn all_that_a_program_had_is_kept_for_it_and_for_no_other() {
    let text = "[[grant]]\nusers = [7, 8]\nclasses = [\"latency-critical\"]\nguaranteed = 3\naddresses = [\"10.77.0.0/24\"]";
    let config = Config::from_toml(text).unwrap();
    let new = || Directory::new(&config, Authority::resolve(&config).unwrap(), 3, u64::MAX);
    let [user, other] = [7, 8].map(|uid| User { uid, owner: uid, groups: vec![uid], privileged: false });
    let mut old = new();
    let chosen = Register { ip: Some(Ipv4Addr::new(10, 77, 0, 9)), ..request("first") };
    let first = register(&mut old, &user, &chosen, &[1, 2]);
    let second = register(&mut old, ROOT, &request("second"), &[3, 4]);
    old.admit(&user, &request("has sent no threads")).unwrap();

    let mut next = new();
    let programs = old.registered().programs;
    next.expect(&programs, user_of(|uid| uid == 0)).unwrap();
    assert!(next.expects());
    assert_eq!((next.expected(7), next.expected(9)), ((1, 2), (0, 2)));
    // One that is as new: another name, address and part of the cores.
    let stranger = next.admit(&other, &request("stranger")).unwrap();
    assert!(stranger.ip != first.ip && stranger.ip != second.ip);
    let refusal = next.admit(&other, &request("first")).unwrap_err();
    assert_eq!(refusal, Refusal::NameKept("first".to_owned()));
    let refusal = next.admit(&other, &Register { guaranteed: 0, ip: Some(first.ip), ..request("x") });
    assert!(matches!(refusal, Err(Refusal::AddressTaken { .. })), "{refusal:?}");
    assert!(matches!(
        next.admit(ROOT, &request("x")),
        Err(Refusal::GuaranteeOversubscribed { taken: 3, .. })
    ));

    // What is kept stays so after a refusal.
    let back = Register { ip: Some(first.ip), ..request("first") };
    let too_much = Register { guaranteed: 2, ..back.clone() };
    assert!(matches!(next.admit(&user, &too_much), Err(Refusal::GuaranteeOversubscribed { .. })));
    assert_eq!(next.expected(7), (1, 2));
    // And after it has lost its place before it was sent `Ready`, under a number that another
    // program may have by then.
    for _ in 0..2 {
        let place = next.admit(&user, &back).unwrap();
        assert_eq!((place.ip, next.expected(7)), (first.ip, (1, 2)));
        let names: Vec<_> = next.registered().programs.into_iter().map(|p| p.register.name).collect();
        assert_eq!(names.len(), 2, "another takeover would forget one: {names:?}");
        next.release(place.id);
        assert_eq!(next.admit(&other, &back), Err(Refusal::NameKept("first".to_owned())));
        assert!(matches!(next.admit(ROOT, &request("x")), Err(Refusal::GuaranteeOversubscribed { .. })));
    }
    // An address of its choice does not free the one that is kept until then.
    let elsewhere = Register { ip: Some([10, 77, 0, 99].into()), ..back.clone() };
    let place = next.admit(&user, &elsewhere).unwrap();
    assert_eq!(place.ip, elsewhere.ip.unwrap());
    assert!(next.ips.contains_key(&first.ip));
    next.release(place.id);
    assert!(!next.ips.contains_key(&place.ip));

    let place = next.admit(&user, &back).unwrap();
    assert_eq!(place.ip, first.ip);
    next.accept_kthreads(place.id, &[1, 2], same).unwrap();
    next.settle(place.id);
    assert_eq!(next.expected(7), (0, 1));
    next.release(place.id);
    assert!(!next.ips.contains_key(&first.ip), "it is free like that of any other");
    // A takeover in the meantime expects the one that has not come back.
    let names: Vec<String> = next.registered().programs.into_iter().map(|p| p.register.name).collect();
    assert_eq!(names, ["second"]);
    assert_eq!(next.forget_expected(), ["second"]);
    assert!(!next.expects());
    next.admit(&other, &request("second")).unwrap();
}

/// Hands the programs of `old` to a new directory with the same settings.
fn succeed(old: &Directory) -> Directory {
    let mut next = Directory::new(&old.config, old.authority.clone(), old.managed, old.memory_bytes);
    next.expect(&old.registered().programs, user_of(|_| false)).unwrap();
    next
}

#[test]
fn a_program_without_a_right_to_choose_its_address_keeps_the_one_it_has() {
    let config = Config::from_toml("[[grant]]\nusers = 1000").unwrap();
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
    let user = User { uid: 1000, owner: 1000, groups: Vec::new(), privileged: false };
    let job = |name: &str| Register { guaranteed: 0, class: ProgramClass::BestEffort, ..request(name) };
    let neighbour = register(&mut directory, &user, &job("neighbour"), &[1, 2]);
    let Assignment { ip, .. } = register(&mut directory, &user, &job("idle"), &[3, 4]);
    directory.release(neighbour.id);
    let back = Register { ip: Some(ip), ..job("idle") };
    for _ in 0..3 {
        directory = succeed(&directory);
        // Its own address, no other.
        let other = Register { ip: Some(neighbour.ip), ..back.clone() };
        assert!(matches!(directory.admit(&user, &other), Err(Refusal::Denied(_))));
        let place = register(&mut directory, &user, &back, &[3, 4]);
        assert_eq!(place.ip, ip);
        directory.settle(place.id);
    }
    // Without what is kept for it, an address needs a right.
    let mut late = succeed(&directory);
    assert_eq!(late.forget_expected(), ["idle"]);
    assert!(matches!(late.admit(&user, &back), Err(Refusal::Denied(_))));
}

#[test]
fn grants_that_programs_have_filled_in_another_order_than_that_of_their_numbers_stay_filled() {
    let text = "[[grant]]\nusers = 1000\nprograms = 1\n[[grant]]\nusers = 1000\nnames = \"x\"\nprograms = 1";
    let config = Config::from_toml(text).unwrap();
    let mut old = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
    let user = User { uid: 1000, owner: 1000, groups: Vec::new(), privileged: false };
    let job = |name: &str| Register { guaranteed: 0, class: ProgramClass::BestEffort, ..request(name) };
    let first = old.admit(ROOT, &job("first")).unwrap();
    let a = register(&mut old, &user, &job("a"), &[3, 4]);
    old.release(first.id);
    let x = register(&mut old, &user, &job("x"), &[5, 6]);
    assert!(x.id.0 < a.id.0, "`x` is entered first");
    let mut next = succeed(&old);
    for program in old.registered().programs {
        let request = Register { ip: Some(program.ip), ..program.register };
        let place = next.admit(&user, &request).unwrap();
        assert_eq!(next.grant(place.id), program.grant);
    }
    // A configuration with lower limits ends none, as when it is read again; one without the grant
    // does.
    let text = "[[grant]]\nusers = 1000\nprograms = 1";
    let less = Config::from_toml(text).unwrap();
    let mut next = Directory::new(&less, Authority::resolve(&less).unwrap(), 4, u64::MAX);
    next.expect(&old.registered().programs, user_of(|_| false)).unwrap();
    let mut without = Directory::new(&less, Authority::default(), 4, u64::MAX);
    let why = without.expect(&old.registered().programs, user_of(|_| false)).unwrap_err();
    assert!(why.contains("\"x\" of user 1000") && why.contains("no [[grant]]"), "{why}");
}

#[test]
fn a_program_that_could_not_attach_is_named_with_the_reason() {
    let (mut old, mut next) = (directory(), directory());
    register(&mut old, ROOT, &request("web"), &[1, 2]);
    next.config.max_kthreads = 1;
    let why = next.expect(&old.registered().programs, user_of(|_| true)).unwrap_err();
    assert!(why.contains("\"web\" of user 0") && why.contains("max-kthreads"), "{why}");
}

#[test]
fn a_program_that_returns_gets_its_former_address_of_the_pool_for_a_while_after_a_start() {
    let text = "pool-start = \"10.77.0.2\"\n[[grant]]\nusers = 7\n[[grant]]\nusers = 8\n\
                addresses = [\"10.77.0.64/26\"]";
    let config = Config::from_toml(text).unwrap();
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 3, u64::MAX);
    let user = User { uid: 7, owner: 7, groups: Vec::new(), privileged: false };
    let job = |name: &str, host| Register {
        guaranteed: 0,
        class: ProgramClass::BestEffort,
        ip: Some([10, 77, 0, host].into()),
        returns: true,
        ..request(name)
    };
    let is_denied = |result: Result<Assignment, Refusal>| matches!(result, Err(Refusal::Denied(_)));
    assert!(is_denied(directory.admit(&user, &job("early", 9))));
    directory.take_back(true);
    let chosen = Register { returns: false, ..job("chosen", 9) };
    assert!(is_denied(directory.admit(&user, &chosen)));
    assert!(is_denied(directory.admit(&user, &job("of another", 70))), "a grant lists it");
    let place = directory.admit(&user, &job("back", 9)).unwrap();
    assert_eq!(place.ip, Ipv4Addr::new(10, 77, 0, 9));
    let taken = directory.admit(&user, &job("second", 9));
    assert!(matches!(taken, Err(Refusal::AddressTaken { .. })), "{taken:?}");
    let ruled = &directory.registered();
    assert!(ruled.programs.is_empty(), "it has sent no threads");
    directory.accept_kthreads(place.id, &[1, 2], same).unwrap();
    let handed_over = &directory.registered().programs[0];
    assert_eq!((handed_over.register.ip, handed_over.ip), (None, place.ip));
    assert!(!handed_over.register.returns);
    directory.release(place.id);
    directory.take_back(false);
    assert!(is_denied(directory.admit(&user, &job("back", 9))));
}

#[test]
fn of_ever_so_many_groups_those_that_grants_name_are_handed_over() {
    let config = Config::from_toml(
        "[[grant]]\ngroups = [5, 9_000_000]\nguaranteed = 1\nclasses = [\"latency-critical\"]",
    );
    let config = config.unwrap();
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 3, u64::MAX);
    let groups = |len: u32| (0..len).collect::<Vec<u32>>();
    for (uid, len, handed_over) in [(7, MAX_GROUPS as u32, MAX_GROUPS), (8, MAX_GROUPS as u32 + 1, 1)] {
        let user = User { uid, owner: uid, groups: groups(len), privileged: false };
        let free = Register { guaranteed: 0, ..request(&uid.to_string()) };
        register(&mut directory, &user, &free, &[2 * uid as i32, 2 * uid as i32 + 1]);
        let programs = directory.registered().programs;
        let program = programs.iter().find(|program| program.uid == uid).unwrap();
        assert_eq!(program.groups.len(), handed_over);
        assert!(program.groups.contains(&5));
    }
}

#[test]
fn what_a_program_had_that_has_not_come_back_is_given_to_no_other() {
    let config = Config::from_toml("prefix-len = 28\npool-start = \"10.77.0.2\"\n[[grant]]\nusers = \"*\"");
    let config = config.unwrap();
    let free = |name: &str| Register { guaranteed: 0, class: ProgramClass::BestEffort, ..request(name) };
    let at = |name: &str, ip: Ipv4Addr, returns| Register { ip: Some(ip), returns, ..free(name) };
    let own = std::process::id() as i32;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let [owner, other] = [7, 8].map(|uid| User { uid, owner: uid, groups: Vec::new(), privileged: false });
    let programs = [("first", 2), ("second", 5)];
    let owed = programs
        .map(|(name, host)| Owed::new(name, [10, 77, 0, host].into(), owner.uid, (own, &stat)).unwrap());
    // Whatever registers, in any order: by another name, another user, or root.
    for seed in 0..64u32 {
        let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
        directory.owe(owed.to_vec());
        let mut given = Vec::new();
        for step in 0..12 {
            let choice = (seed.rotate_left(step) ^ step).wrapping_mul(0x9e37_79b9) >> 16;
            let (name, ip) = programs[choice as usize % 2];
            let ip = Ipv4Addr::new(10, 77, 0, ip);
            let user = [&other, &owner, ROOT][choice as usize / 2 % 3];
            let request = match choice / 8 % 4 {
                0 => free(&format!("job-{step}")),
                1 => at(&format!("job-{step}"), ip, choice & 256 != 0),
                2 => free(name),
                _ => at(name, ip, choice & 256 != 0),
            };
            if let Ok(place) = directory.admit(user, &request) {
                given.push((user.uid, request.name.clone(), place.ip));
            }
        }
        for (uid, name, ip) in given {
            let is_its = |owed: &Owed| (owed.uid, &*owed.name, owed.ip) == (uid, &*name, ip);
            let is_anothers = |owed: &Owed| owed.name == name || owed.ip == ip;
            assert!(owed.iter().all(|o| !is_anothers(o) || is_its(o)), "seed {seed}: {uid} {name} {ip}");
        }
    }
    // A refusal names the holder, and who returns gets what it had, after any time.
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
    directory.owe(owed.to_vec());
    let why = directory.admit(&other, &free("second")).unwrap_err().to_string();
    assert!(why.contains("of user 7"), "{why}");
    let why = directory.admit(ROOT, &at("job", owed[1].ip, false)).unwrap_err().to_string();
    assert!(why.contains("\"second\" of user 7"), "{why}");
    let place = directory.admit(&owner, &at("second", owed[1].ip, true)).unwrap();
    assert_eq!(place.ip, owed[1].ip);
    directory.settle(place.id);
    directory.repay(&owed[1]);
    assert_eq!(directory.owed(), &owed[..1]);
    // One that only says so does not.
    let claim = at("third", [10, 77, 0, 9].into(), true);
    assert!(matches!(directory.admit(&owner, &claim), Err(Refusal::Denied(_))));
    // The others are free once their programs have ended.
    directory.forgive(|_| false);
    directory.admit(&other, &free("first")).unwrap();
}

/// Returns a registration of a program that replaces a running instance, and may be replaced.
fn latest(name: &str) -> Register {
    Register { instance: Instance::Latest, ..request(name) }
}

#[test]
fn two_instances_share_a_name_and_an_address_and_no_third_does() {
    let mut directory = directory();
    let first = directory.admit(ROOT, &Register { guaranteed: 2, ..latest("web") }).unwrap();
    let second = directory.admit(ROOT, &Register { guaranteed: 2, ..latest("web") }).unwrap();
    assert_eq!((second.ip, second.mac), (first.ip, first.mac));
    assert_ne!(second.id, first.id);
    assert_eq!(directory.earlier(second.id), Some(first.id));
    let why = |refused: Result<Assignment, Refusal>| match refused {
        Err(Refusal::NotBeside { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(directory.admit(ROOT, &latest("web"))), NotBeside::Replaced);
    // The address is free once both have ended, in either order.
    let taken = Register { ip: Some(first.ip), ..request("other") };
    directory.release(first.id);
    assert!(matches!(directory.admit(ROOT, &taken), Err(Refusal::AddressTaken { .. })));
    assert_eq!(directory.earlier(second.id), None);
    let third = directory.admit(ROOT, &latest("web")).unwrap();
    assert_eq!((third.ip, directory.earlier(third.id)), (first.ip, Some(second.id)));
    directory.release(third.id);
    assert_eq!(directory.earlier(second.id), None, "it is as it was");
    directory.release(second.id);
    assert_eq!(directory.admit(ROOT, &taken).unwrap().ip, first.ip);
}

#[test]
fn an_instance_is_replaced_only_if_it_has_agreed_by_the_same_user_at_the_same_address() {
    let mut directory = directory();
    directory.admit(ROOT, &request("firm")).unwrap();
    let agreed = directory.admit(ROOT, &Register { guaranteed: 0, ..latest("web") }).unwrap();
    let refusal = |directory: &mut Directory, user: &User, request: &Register| {
        directory.admit(user, &Register { guaranteed: 0, ..request.clone() }).unwrap_err()
    };
    let not = |name: &str, why| Refusal::NotBeside { name: name.to_owned(), why };
    assert_eq!(refusal(&mut directory, ROOT, &latest("firm")), not("firm", NotBeside::Disagrees));
    assert_eq!(refusal(&mut directory, ROOT, &request("web")), Refusal::NameTaken("web".to_owned()));
    let other = User { uid: 7, owner: 7, ..ROOT.clone() };
    assert_eq!(refusal(&mut directory, &other, &latest("web")), Refusal::NameTaken("web".to_owned()));
    let elsewhere = Register { ip: Some([10, 77, 0, 99].into()), ..latest("web") };
    assert_eq!(refusal(&mut directory, ROOT, &elsewhere), not("web", NotBeside::Address));
    assert_eq!(directory.earlier(agreed.id), None, "nothing has changed");
}

#[test]
fn guaranteed_cores_of_two_instances_count_once() {
    let mut directory = directory();
    let guaranteed = |guaranteed| Register { guaranteed, ..latest("web") };
    let first = directory.admit(ROOT, &guaranteed(1)).unwrap();
    directory.admit(ROOT, &guaranteed(2)).unwrap();
    // Two of four are the pair's.
    let rest = |guaranteed| Register { guaranteed, kthreads: 4, ..request("rest") };
    assert!(matches!(
        directory.admit(ROOT, &rest(3)),
        Err(Refusal::GuaranteeOversubscribed { taken: 2, .. })
    ));
    directory.admit(ROOT, &rest(2)).unwrap();
    directory.release(first.id);
    assert!(directory.admit(ROOT, &Register { guaranteed: 1, ..request("more") }).is_err());
}

#[test]
fn two_instances_come_back_in_either_order() {
    for swapped in [false, true] {
        let (mut before, mut after) = (directory(), directory());
        let free = Register { guaranteed: 0, ..latest("web") };
        let first = before.admit(ROOT, &free).unwrap();
        let second = before.admit(ROOT, &free).unwrap();
        for place in [&first, &second] {
            let first_tid = place.id.0 as i32 * 10 + 1;
            before.accept_kthreads(place.id, &[first_tid, first_tid + 1], same).unwrap();
            before.settle(place.id);
        }
        let mut estate = before.registered();
        if swapped {
            estate.programs.reverse();
        }
        after.expect(&estate.programs, user_of(|_| true)).unwrap();
        // As each was told how it stands.
        let back = |instance| Register { instance, ip: Some(first.ip), ..free.clone() };
        let mut requests = [back(Instance::Replaced), back(Instance::Replaces)];
        if swapped {
            requests.reverse();
        }
        let places: Vec<Assignment> =
            requests.iter().map(|request| after.admit(ROOT, request).unwrap()).collect();
        places.iter().for_each(|place| after.settle(place.id));
        let (earlier, later) = if swapped { (1, 0) } else { (0, 1) };
        assert_eq!(after.earlier(places[later].id), Some(places[earlier].id), "{swapped}");
        // Without the list, they say so themselves.
        let mut anew = directory();
        let places: Vec<Assignment> =
            requests.iter().map(|request| anew.admit(ROOT, request).unwrap()).collect();
        assert_eq!(anew.earlier(places[later].id), Some(places[earlier].id), "{swapped}");
    }
}

#[test]
fn both_instances_get_back_the_address_that_a_killed_iokernel_chose_for_them() {
    let config = Config::from_toml("[[grant]]\nusers = \"*\"").unwrap();
    let mut directory = Directory::new(&config, Authority::resolve(&config).unwrap(), 4, u64::MAX);
    let owner = User { uid: 7, owner: 7, groups: Vec::new(), privileged: false };
    let ip = config.first_pool_address();
    let owed = ["self", "thread-self"].map(|folder| {
        let stat = std::fs::read_to_string(format!("/proc/{folder}/stat")).unwrap();
        let pid: i32 = stat.split(' ').next().unwrap().parse().unwrap();
        Owed::new("web", ip, owner.uid, (pid, &stat)).unwrap()
    });
    directory.owe(owed.to_vec());
    for (instance, owed) in [Instance::Replaced, Instance::Replaces].into_iter().zip(&owed) {
        let free = Register { guaranteed: 0, class: ProgramClass::BestEffort, ..request("web") };
        let place = directory.admit(&owner, &Register { ip: Some(ip), returns: true, instance, ..free });
        let place = place.unwrap();
        assert_eq!(place.ip, ip);
        directory.settle(place.id);
        directory.repay(owed);
    }
    assert_eq!(directory.owed(), []);
}

#[test]
fn an_instance_is_not_said_to_be_replaced_by_one_that_is_not_ready() {
    let mut directory = directory();
    let free = Register { guaranteed: 0, ..latest("web") };
    let first = directory.admit(ROOT, &free).unwrap();
    directory.settle(first.id);
    let second = directory.admit(ROOT, &free).unwrap();
    assert_eq!(directory.instances("web"), []);
    directory.release(second.id);
    assert_eq!(directory.instances("web"), [(first.id, Instance::Latest)], "as it was");
    let second = directory.admit(ROOT, &free).unwrap();
    directory.settle(second.id);
    let mut both = directory.instances("web");
    both.sort_by_key(|(id, _)| id.0);
    assert_eq!(both, [(first.id, Instance::Replaced), (second.id, Instance::Replaces)]);
}
