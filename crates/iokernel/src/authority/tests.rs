use super::*;
use tailwater_shm::control::{Instance, ProgramClass};
use tailwater_shm::layout::VERSION;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
const STUDENTS: u32 = 500;

fn authority(text: &str) -> Authority {
    let mut config = Config::from_toml(text).unwrap();
    config.file = Some("/etc/tailwater.toml".into());
    let user = |name: &str| Ok((name == "alice").then_some(ALICE));
    Authority::resolve_with(&config, user, |name| Ok((name == "students").then_some(STUDENTS))).unwrap()
}

fn user(uid: u32, groups: &[u32]) -> User {
    User { uid, owner: uid, groups: groups.to_vec(), privileged: false }
}

fn request(name: &str, class: ProgramClass) -> Register {
    let (name, version, ring_bytes) = (name.to_owned(), VERSION, 1 << 16);
    Register {
        version,
        name,
        kthreads: 2,
        guaranteed: 0,
        class,
        ring_bytes,
        ip: None,
        returns: false,
        instance: Instance::Only,
        listen: Vec::new(),
    }
}

fn batch(name: &str) -> Register {
    request(name, ProgramClass::BestEffort)
}

fn used(user: u32, held: Held) -> Usage {
    let mut usage = Usage::default();
    usage.add(user, held);
    usage
}

/// Returns the ruling with nothing held yet, as text if it is a denial.
#[track_caller]
fn ruling(authority: &Authority, user: &User, request: &Register) -> Result<Option<usize>, String> {
    authority.rule_on(user, request, 1 << 20, |_| Usage::default()).map_err(|denial| denial.to_string())
}

#[test]
fn without_a_grant_only_root_and_the_iokernels_own_user_register() {
    let none = authority("");
    let root = User { uid: 0, owner: 0, groups: vec![0], privileged: true };
    let everything = Register {
        guaranteed: 2,
        ip: Some([10, 77, 1, 1].into()),
        ..request("web", ProgramClass::default())
    };
    assert_eq!(ruling(&none, &root, &everything), Ok(None));
    let why = ruling(&none, &user(ALICE, &[]), &batch("web")).unwrap_err();
    assert!(why.contains("user 1000") && why.contains("[[grant]] with users = 1000"), "{why}");
    assert!(why.contains("/etc/tailwater.toml") && why.contains("SIGHUP"), "{why}");
    let nowhere = Authority { file: None, ..none };
    let why = ruling(&nowhere, &user(ALICE, &[]), &batch("web")).unwrap_err();
    assert!(why.contains("--config FILE"), "{why}");
}

#[test]
fn a_grant_covers_users_and_groups_by_name_and_number_or_everyone() {
    for (keys, covered) in [
        ("users = \"alice\"", [true, false]),
        ("users = 1001", [false, true]),
        ("users = [\"alice\", 1001]", [true, true]),
        ("groups = \"students\"", [false, true]),
        ("groups = 500\nusers = 1000", [true, true]),
        ("groups = 501", [false, false]),
        ("users = \"*\"", [true, true]),
    ] {
        let authority = authority(&format!("[[grant]]\n{keys}"));
        let asked = [user(ALICE, &[100]), user(BOB, &[100, STUDENTS])];
        let got = asked.each_ref().map(|user| ruling(&authority, user, &batch("job")).is_ok());
        assert_eq!(got, covered, "{keys}");
    }
}

#[test]
fn a_grant_permits_no_more_than_it_says() {
    let small = authority("[[grant]]\nusers = \"alice\"");
    let large = authority(
        "[[grant]]\nusers = \"alice\"\nnames = [\"web-*\", \"db\"]\naddresses = \"10.77.1.0/24\"\n\
         classes = [\"latency-critical\"]\nguaranteed = 1\nkthreads = 4",
    );
    // As of a user who reads the statistics only.
    let asks = authority("[[grant]]\nusers = \"alice\"\nprograms = 0");
    let alice = user(ALICE, &[]);
    let service = |name: &str| request(name, ProgramClass::LatencyCritical);
    let at = |host: [u8; 4]| Register { ip: Some(host.into()), ..service("db") };
    assert_eq!(ruling(&small, &alice, &batch("any name")), Ok(Some(0)));
    assert_eq!(ruling(&large, &alice, &Register { guaranteed: 1, ..at([10, 77, 1, 9]) }), Ok(Some(0)));
    for (authority, request, words) in [
        (&asks, batch("a"), "have 0 of at most 0"),
        (&small, service("a"), "\"latency-critical\" to `classes` of [[grant]] 1"),
        (&small, Register { guaranteed: 1, ..batch("a") }, "raises `guaranteed` of [[grant]] 1"),
        (&small, Register { ip: Some([10, 77, 1, 9].into()), ..batch("a") }, "adds it to `addresses`"),
        (&large, batch("db"), "no programs of class best-effort"),
        (&large, service("dbx"), "the names web-* or db, not \"dbx\""),
        (&large, at([10, 77, 2, 9]), "choose one of 10.77.1.0/24, or none"),
        (&large, Register { guaranteed: 2, ..service("db") }, "have 0 of at most 1"),
        (&large, Register { kthreads: 5, ..service("db") }, "5 kthreads requested by user 1000"),
    ] {
        let why = ruling(authority, &alice, &request).unwrap_err();
        assert!(why.contains(words) && why.contains("/etc/tailwater.toml"), "{words:?}: {why}");
    }
}

#[test]
fn limits_are_of_all_programs_of_a_grant_and_the_next_grant_may_permit_what_one_has_not_left() {
    let two = "[[grant]]\ngroups = 500\nprograms = 2\nregion-bytes = 4194304\n[[grant]]\nusers = \"alice\"\nprograms = 9";
    let authority = authority(two);
    let held = |programs| {
        move |grant| if grant == 0 { used(7, Held { programs, ..Held::default() }) } else { Usage::default() }
    };
    let (alice, bob) = (user(ALICE, &[STUDENTS]), user(BOB, &[STUDENTS]));
    let rule = |user: &User, programs, bytes| authority.rule_on(user, &batch("a"), bytes, held(programs));
    assert_eq!(rule(&bob, 1, 1 << 20), Ok(Some(0)));
    let denial = rule(&bob, 2, 1 << 20).unwrap_err();
    assert!(
        denial.is_about_others() && denial.to_string().contains("have 2 of at most 2, those of user 7 2"),
        "{denial}"
    );
    assert_eq!(rule(&alice, 2, 1 << 20), Ok(Some(1)));
    let denial = rule(&bob, 0, 5 << 20).unwrap_err();
    assert!(!denial.is_about_others() && denial.to_string().contains("region-bytes"), "{denial}");
    // No limit by the second grant: that of every user applies.
    assert_eq!(rule(&alice, 0, 5 << 20), Ok(Some(1)));
    assert!(authority.limits_memory(0) && !authority.limits_memory(1));
}

#[test]
fn what_a_grant_lists_is_kept_for_those_it_covers() {
    let authority = authority(
        "[[grant]]\nusers = \"*\"\n[[grant]]\nusers = \"alice\"\nnames = \"db\"\n\
         addresses = [\"10.77.1.0/24\", \"10.77.2.5\"]",
    );
    let why = ruling(&authority, &user(BOB, &[]), &batch("db")).unwrap_err();
    assert!(why.contains("kept for other users"), "{why}");
    assert_eq!(ruling(&authority, &user(BOB, &[]), &batch("db2")), Ok(Some(0)));
    assert_eq!(ruling(&authority, &user(ALICE, &[]), &batch("db")), Ok(Some(0)));
    let last = |host: [u8; 4]| authority.keeps(host.into());
    assert_eq!(last([10, 77, 1, 0]), Some([10, 77, 1, 255].into()));
    assert_eq!(last([10, 77, 2, 5]), Some([10, 77, 2, 5].into()));
    assert_eq!(last([10, 77, 2, 6]), None);
}

#[test]
fn mistakes_in_a_grant_are_refused_with_what_is_wrong() {
    for (keys, words) in [
        ("", "users = none"),
        ("users = \"alice\"\nname = \"web\"", "name"),
        ("users = \"a b\"", "no name of a user"),
        ("groups = \"*\"", "write users"),
        ("users = 1\nclasses = [\"best\"]", "best"),
        ("users = 1\nclasses = []", "at least one class"),
        ("users = 1\naddresses = \"10.77.1.1/24\"", "write 10.77.1.0/24"),
        ("users = 1\naddresses = \"fd00::/64\"", "IPv4"),
        ("users = 1\nnames = \"\"", "printable"),
        ("users = 1\nconnections = 1000", "connections"),
        ("users = 1\nkthreads = 0", "programs = 0"),
    ] {
        let error = Config::from_toml(&format!("[[grant]]\n{keys}")).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
    let unknown = |keys: &str| {
        let config = Config::from_toml(&format!("[[grant]]\n{keys}")).unwrap();
        Authority::resolve_with(&config, |_| Ok(None), |_| Err(Errno::IO)).unwrap_err().to_string()
    };
    let (user, group) = (unknown("users = \"alcie\""), unknown("groups = \"web\""));
    assert!(user.contains("grant.users = alcie") && user.contains("no such account"), "{user}");
    assert!(group.contains("grant.groups = web") && group.contains("write its number"), "{group}");
}

#[test]
fn a_user_is_told_what_the_grants_permit() {
    let authority = authority("[[grant]]\nusers = \"alice\"\nnames = \"web-*\"\nguaranteed = 1");
    let held = |_| used(ALICE, Held { programs: 1, kthreads: 2, guaranteed: 1, region_bytes: 0 });
    let words = authority.describe(&user(ALICE, &[]), held);
    for part in ["[[grant]] 1", "class best-effort", "web-*", "guaranteed cores 1 of 1", "kthreads 2 of 256"]
    {
        assert!(words.contains(part), "{part:?}: {words}");
    }
    assert!(authority.describe(&user(BOB, &[]), held).contains("may register no programs"));
}

#[test]
fn users_whom_a_grant_covers_without_naming_them_count_for_the_first_that_does() {
    let grants = ["users = 1001", "groups = 501\nusers = 1000", "groups = 500", "users = \"*\""];
    let of = authority(&grants.map(|keys| format!("[[grant]]\n{keys}\n")).concat());
    for (uid, groups, by) in [
        (ALICE, vec![STUDENTS], None),
        (BOB, vec![], None),
        (7, vec![STUDENTS], Some(2)),
        (7, vec![STUDENTS, 501], Some(1)),
        (7, vec![], Some(3)),
    ] {
        assert_eq!(of.unnamed_by(&user(uid, &groups)), by, "{uid} {groups:?}");
    }
    assert!(of.covers_unnamed());
    assert!(!authority("[[grant]]\nusers = [1000, 1001]").covers_unnamed());
}

#[test]
fn one_user_with_all_subordinate_ids_leaves_a_quarter_of_what_a_grant_gives_to_others() {
    let authority = authority("[[grant]]\nusers = [\"*\", 1001]\nprograms = 8");
    let subordinate = |uid| User { owner: ALICE, ..user(uid, &[]) };
    let mut usage = Usage::default();
    for uid in [ALICE, 100_000, 100_001, 100_002, 100_003, 165_535] {
        assert_eq!(
            authority.rule_on(&subordinate(uid), &batch("a"), 1, |_| usage.clone()),
            Ok(Some(0)),
            "{uid}"
        );
        usage.add(ALICE, Held { programs: 1, ..Held::default() });
    }
    let denial = authority.rule_on(&subordinate(100_004), &batch("a"), 1, |_| usage.clone()).unwrap_err();
    assert!(denial.is_about_others());
    let why = denial.to_string();
    let words = "the programs of user 1000, of whom 100004 is a subordinate id, have 6 of at most 6";
    assert!(why.contains(words) && why.contains("names the user"), "{why}");
    // Others have what is left; and an id that a grant names counts as itself.
    for uid in [7, BOB] {
        assert_eq!(authority.counts_for(&subordinate(uid)), if uid == BOB { BOB } else { ALICE });
        assert!(authority.rule_on(&user(uid, &[]), &batch("a"), 1, |_| usage.clone()).is_ok());
    }
    let words = [ALICE, BOB].map(|uid| authority.describe(&user(uid, &[]), |_| usage.clone()));
    assert!(words[0].contains("three quarters") && !words[1].contains("three quarters"), "{words:?}");
}

#[test]
fn limits_too_small_to_divide_are_those_of_one_user_too() {
    assert_eq!([0, 1, 2, 3, 4, 16, u64::MAX].map(share), [0, 1, 2, 3, 3, 12, u64::MAX - u64::MAX / 4]);
}
