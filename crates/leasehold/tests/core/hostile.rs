//! Hostile names, TTLs, labels, URLs and numbers: no panic, and an error that says what is wrong before anything is
//! sent.

use leasehold_testkit as common;

use std::time::Duration;

use common::{ScriptedStore, client, paused_runtime};
use leasehold::{Clock, Error, Fence, Name, Names, Owner, Permits, Token, Ttl, blocking};
use proptest::prelude::*;

/// An error for people: it names the thing, and it can be printed to a terminal as it is.
fn is_clear(error: &Error, what: &str) -> bool {
    let text = error.to_string();
    matches!(error, Error::Invalid { what: named, .. } if *named == what)
        && text.len() < 1_000
        && text.starts_with(&format!("invalid {what}"))
        && !text.chars().any(forges_output)
}

/// Control characters, directions of text, and separators of lines: a terminal shows something else than the text.
fn forges_output(c: char) -> bool {
    c.is_control() || FORGING.contains(&c)
}

const FORGING: [char; 14] = [
    '\u{061C}', '\u{200E}', '\u{200F}', '\u{2028}', '\u{2029}', '\u{202A}', '\u{202B}', '\u{202C}',
    '\u{202D}', '\u{202E}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_is_a_name_or_a_clear_error(text in any::<String>()) {
        match Name::new(&text) {
            Ok(name) => {
                prop_assert_eq!(name.as_str(), &text);
                prop_assert!((1..=255).contains(&text.len()));
                let forbidden = |c: char| forges_output(c) || matches!(c, '{' | '}');
                prop_assert!(!text.contains(forbidden));
            }
            Err(error) => prop_assert!(is_clear(&error, "name"), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_a_name_or_a_clear_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        match Name::from_bytes(&bytes) {
            Ok(name) => prop_assert_eq!(name.as_str().as_bytes(), &bytes[..]),
            Err(error) => prop_assert!(is_clear(&error, "name"), "{}", error),
        }
    }

    #[test]
    fn any_text_is_a_label_or_a_clear_error(text in any::<String>()) {
        match Owner::new(&text) {
            Ok(owner) => prop_assert!(!owner.as_str().is_empty() && owner.as_str().len() <= 128),
            Err(error) => prop_assert!(is_clear(&error, "owner label"), "{}", error),
        }
    }

    #[test]
    fn any_duration_is_a_ttl_or_a_clear_error(secs in any::<u64>(), nanos in 0..1_000_000_000u32) {
        let duration = Duration::new(secs, nanos);
        match Ttl::new(duration) {
            Ok(ttl) => {
                prop_assert!(ttl.as_duration() <= duration && ttl.validity() < ttl.as_duration());
                prop_assert!(ttl.validity() > Duration::ZERO);
            }
            Err(error) => prop_assert!(is_clear(&error, "TTL"), "{}", error),
        }
    }

    #[test]
    fn small_durations_are_ttls_or_clear_errors(micros in 0..30_000u64) {
        let ttl = Ttl::new(Duration::from_micros(micros));
        prop_assert_eq!(ttl.is_ok(), micros >= 10_000);
    }

    #[test]
    fn any_numbers_are_permits_or_a_clear_error(take in any::<u32>(), limit in any::<u32>()) {
        match Permits::new(take, limit) {
            Ok(permits) => prop_assert!(permits.take() >= 1 && permits.take() <= permits.limit()),
            Err(error) => prop_assert!(is_clear(&error, "permits"), "{}", error),
        }
    }

    #[test]
    fn any_number_is_a_fence_or_a_clear_error(number in any::<u64>(), steps in any::<u64>()) {
        match Fence::new(number) {
            Ok(fence) => {
                prop_assert_eq!(fence.to_string().parse::<Fence>().unwrap(), fence);
                if let Ok(later) = fence.plus(steps) {
                    prop_assert!(later >= fence, "a fence wrapped");
                }
            }
            Err(error) => prop_assert!(is_clear(&error, "fence"), "{}", error),
        }
    }

    #[test]
    fn any_text_is_a_fence_or_a_clear_error(text in any::<String>()) {
        if let Err(error) = text.parse::<Fence>() {
            prop_assert!(is_clear(&error, "fence"), "{}", error);
        }
    }

    #[test]
    fn a_broken_token_is_refused_and_not_shown(text in any::<String>(), cut in 0..32usize) {
        if let Err(error) = Token::parse(&text) {
            prop_assert!(error.to_string().len() < 400, "{}", error);
        }
        let token = Token::fresh(&Owner::this_process()).unwrap();
        prop_assert_eq!(&Token::parse(token.expose()).unwrap(), &token);
        let broken = &token.expose()[cut + 1..];
        let error = Token::parse(broken).unwrap_err();
        prop_assert!(!error.to_string().contains(&broken[..4.min(31 - cut)]) || cut > 26, "{}", error);
    }

    #[test]
    fn any_number_of_names_is_sorted_or_a_clear_error(numbers in prop::collection::vec(0..100u8, 0..80)) {
        match Names::new(numbers.iter().map(|n| Name::new(format!("n{n}")).unwrap())) {
            Ok(names) => prop_assert!(names.as_slice().is_sorted_by(|a, b| a < b)),
            Err(error) => prop_assert!(is_clear(&error, "names"), "{}", error),
        }
    }

    #[test]
    fn any_url_connects_or_is_a_clear_error(url in any::<String>()) {
        if let Err(error) = blocking::connect(&url) {
            prop_assert!(is_clear(&error, "store URL"), "{}", error);
        }
    }

    #[test]
    fn a_password_in_a_url_is_never_shown(scheme in "[a-z+]{0,9}", password in "[!-~]{8,40}") {
        let url = format!("{scheme}://user:{password}@127.0.0.1:6379/0");
        let error = blocking::connect(&url).unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            prop_assert!(!text.contains(&password), "{}", text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the options are, asking ends with a lease or with an error; time-outs saturate and never overflow.
    #[test]
    fn any_options_end_in_a_lease_or_an_error(
        name in "[a-z/.{}\\x00-\\x20]{0,12}",
        label in any::<String>(),
        ttl in extreme(),
        wait in extreme(),
        max_hold in extreme(),
        min_validity in extreme(),
        renews in any::<bool>(),
    ) {
        paused_runtime().block_on(async move {
            let store = ScriptedStore::new(Clock::tokio());
            let locks = client(&store, "a");
            let mut mutex = locks.mutex(name).owner(label).ttl(ttl).wait(wait).max_hold(max_hold);
            mutex = mutex.min_validity(min_validity);
            if !renews {
                mutex = mutex.no_renewal();
            }
            match mutex.lock().await {
                Ok(lease) => {
                    let second = mutex.try_lock().await.unwrap();
                    assert!(second.is_none() || !lease.is_valid());
                    let _ = lease.extend(wait).await;
                    let _ = lease.release().await;
                }
                Err(Error::Invalid { .. }) => {
                    assert_eq!(store.acquires.load(std::sync::atomic::Ordering::SeqCst), 0, "sent all the same");
                }
                Err(error) => panic!("{error}"),
            }
            locks.close().await;
        });
    }
}

/// Durations as hostile as they come.
fn extreme() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        Just(Duration::from_secs(u64::MAX / 2)),
        Just(Duration::from_nanos(1)),
        (0..100_000_000u64).prop_map(Duration::from_micros),
        Just(Duration::from_secs(30)),
    ]
}

#[test]
fn the_names_that_break_others_are_refused() {
    let long = "x".repeat(1 << 20);
    for bad in
        ["", "\0", "a\0b", "{", "a}b", "{lock:x}", "../etc", "a/..", "a/./b", "\u{7f}", "line\nbreak", &long]
    {
        let error = Name::new(bad).unwrap_err();
        assert!(is_clear(&error, "name"), "{error}");
    }
    assert!(Name::from_bytes(b"\xff\xfe").is_err());
    for good in ["x", "orders:42", "Zählung", "a/b", "a..b", "名前", &"x".repeat(255)] {
        assert!(Name::new(good).is_ok(), "{good}");
    }
}

#[test]
fn characters_that_change_the_direction_of_text_are_refused_and_those_of_others_are_escaped() {
    for c in FORGING {
        let text = format!("a{c}b");
        assert!(is_clear(&Name::new(&text).unwrap_err(), "name"));
        assert!(is_clear(&Owner::new(&text).unwrap_err(), "owner label"));
        // As another program may have written it into the store.
        let token = Token::parse(&format!("{}@{text}", "0123456789abcdef".repeat(2))).unwrap();
        assert_eq!(token.owner().as_str(), format!("a{}b", c.escape_unicode()));
        for shown in [token.to_string(), format!("{token:?}"), token.owner().to_string()] {
            assert!(!shown.contains(forges_output) && shown.contains("\\u{"), "{shown}");
        }
    }
    for good in ["שלום", "مرحبا", "a\u{200d}b"] {
        assert!(
            Name::new(good).is_ok() && Owner::new(good).is_ok(),
            "letters that run from right to left: {good}"
        );
    }
}

#[test]
fn at_the_fence_limit_a_lock_is_refused_and_nothing_is_left() {
    paused_runtime().block_on(async {
        let store = std::sync::Arc::new(leasehold::store::memory::Memory::new(Clock::tokio()));
        store.preset_last_fence(Fence::MAX - 1);
        let locks = client(&store, "a");
        let last = locks.mutex("x").lock().await.unwrap();
        assert_eq!(last.fence().get(), Fence::MAX);
        last.release().await.unwrap();
        let error = locks.mutex("x").lock().await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(locks.inspect("x").await.unwrap().is_none());
    });
}
