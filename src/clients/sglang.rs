//! SGLang.
//!
//! Its pools are made once and stay; what it gives back is what torch has reserved and does not
//! use. `/continue_generation` does that beside running requests, in milliseconds, from 0.5.12 on.
//! `/flush_cache` does it only while there is no request, and drops what was computed of prefixes.

use std::time::Duration;

use serde_json::json;

use super::{Emptying, EngineKey, KeyRing, NoKey, Pausing, Refusal, Session};
use crate::engines::sglang::{LOADS, loads, version};
use crate::model::{CachePermission, EngineLoad, counted};

const CONTINUE: &str = "/continue_generation";
const PAUSE: &str = "/pause_generation";
const FLUSH: &str = "/flush_cache";

/// What is looked up answers within milliseconds.
const LOOKING_TAKES: Duration = Duration::from_secs(2);
/// To give back tens of GiB takes the driver a while.
const EMPTYING_TAKES: Duration = Duration::from_secs(10);
/// Nothing is computed meanwhile, and probes of others begin to fail.
const PAUSED_FLUSHING_TAKES: Duration = Duration::from_secs(2);
const PAUSING_TAKES: Duration = Duration::from_secs(2);
/// `/health` has a token generated, and gives up after 20 s.
const HEALTH_TAKES: Duration = Duration::from_secs(5);

/// The first with `torch_empty_cache`; before, the field is ignored, and the answer is 200.
const EMPTIES_SINCE: [u32; 3] = [0, 5, 12];
/// The first whose pause knows modes; before, each ends all requests.
const RETRACTS_SINCE: [u32; 3] = [0, 5, 6];

const CONTROL_KEY: &str = "admin_key_file, or api_key_file where it has no admin key";

/// What is known of it before anything is done.
struct Known {
    load: Option<EngineLoad>,
    version: Option<[u32; 3]>,
}

impl Known {
    fn requests(&self) -> Option<u64> {
        self.load.and_then(|load| load.requests().value())
    }
}

/// Empties it.
pub(super) fn empty(emptying: &Emptying<'_>, pausing: &mut dyn Pausing) -> Result<String, Refusal> {
    let key = emptying.control_key()?;
    let known = look(emptying)?;
    let is_idle = known.requests() == Some(0);
    check_not_paused(emptying)?;
    if is_idle && emptying.allows(CachePermission::DropPrefixCache) {
        let answer = emptying.session.post(FLUSH, None, key.as_ref(), EMPTYING_TAKES)?;
        match answer.status {
            200 => return Ok("/flush_cache answered 200: its prefix cache is dropped".to_owned()),
            // A request has come meanwhile.
            400 => {}
            _ => return Err(refused(FLUSH, &answer, key.as_ref())),
        }
    } else if known.requests() > Some(0) && emptying.allows(CachePermission::RetractRequests) {
        return retract(emptying, &known, key.as_ref(), pausing);
    }
    if known.version.is_some_and(|version| version < EMPTIES_SINCE) {
        return Err(Refusal::TooOld(
            "SGLang before 0.5.12 gives memory back only by /flush_cache: allow: \
             [drop_prefix_cache] does that while it has no request",
        ));
    }
    let answer = proceed(emptying.session, key.as_ref(), EMPTYING_TAKES)?;
    let beside = match known.requests() {
        Some(0) => "it has no request".to_owned(),
        Some(requests) => format!("beside {}", counted(requests, "request")),
        None => "whether it has requests is not known".to_owned(),
    };
    Ok(format!("{CONTINUE} answered {}, {beside}", answer.status))
}

/// The idle probe; without a key that it wants, nothing is known.
fn look(emptying: &Emptying<'_>) -> Result<Known, Refusal> {
    let key = emptying.api_key()?;
    let answer = emptying.session.get(LOADS, key.as_ref(), LOOKING_TAKES)?;
    if !answer.is_success() {
        return Ok(Known { load: None, version: None });
    }
    let text = answer.text();
    let load = loads(&text).ok_or_else(|| Refusal::Unreadable(LOADS.to_owned()))?;
    Ok(Known { load: Some(load), version: version(&text) })
}

/// To continue un-pauses an engine that a trainer has paused on purpose.
fn check_not_paused(emptying: &Emptying<'_>) -> Result<(), Refusal> {
    let key = emptying.api_key()?;
    let ask = |path| emptying.session.get(path, key.as_ref(), LOOKING_TAKES);
    match ask("/ready")?.status {
        200 => Ok(()),
        // It is well, and does not take requests.
        503 if ask("/ping")?.status == 200 => Err(Refusal::Paused),
        404 if emptying.allows(CachePermission::Unpause) => Ok(()),
        404 => Err(Refusal::NotAllowed {
            permission: CachePermission::Unpause,
            why: "SGLang before 0.5.21 cannot be asked whether somebody has paused it, and would \
                  go on",
        }),
        status => Err(Refusal::NotReady(status)),
    }
}

/// Pauses it, flushes and has it go on.
fn retract(
    emptying: &Emptying<'_>,
    known: &Known,
    key: Option<&EngineKey>,
    pausing: &mut dyn Pausing,
) -> Result<String, Refusal> {
    if known.version.is_none_or(|version| version < RETRACTS_SINCE) {
        return Err(Refusal::TooOld(
            "SGLang before 0.5.6 ends all requests when it is paused, and its version could not be \
             told from /v1/loads: it is not paused",
        ));
    }
    let session = emptying.session;
    pausing.begin().map_err(Refusal::NotWrittenDown)?;
    let paused = session.post(PAUSE, Some(&json!({"mode": "retract"})), key, PAUSING_TAKES);
    let flushed = match &paused {
        Ok(answer) if answer.is_success() => {
            Some(session.post(FLUSH, None, key, PAUSED_FLUSHING_TAKES))
        }
        // As for want of the right key, with which it could not be told to go on either.
        Ok(answer) if (400..500).contains(&answer.status) => {
            pausing.refused();
            return Err(refused(PAUSE, answer, key));
        }
        _ => None,
    };
    // It may be paused even where it did not answer.
    pausing.end().map_err(Refusal::StillPaused)?;
    // Whoever asked for its health meanwhile has left it marked as ill until it is asked again.
    let _its_own_business = session.get("/health", None, HEALTH_TAKES);
    let answer = paused?;
    if !answer.is_success() {
        return Err(refused(PAUSE, &answer, key));
    }
    let requests =
        known.requests().map_or("all requests".to_owned(), |requests| counted(requests, "request"));
    match flushed {
        Some(Ok(answer)) if answer.is_success() => {
            Ok(format!("{requests} retracted, prefix cache dropped, and it goes on"))
        }
        Some(Ok(answer)) => Err(refused(FLUSH, &answer, key)),
        Some(Err(error)) => Err(error.into()),
        None => Err(Refusal::Unreadable(PAUSE.to_owned())),
    }
}

fn proceed(
    session: &Session,
    key: Option<&EngineKey>,
    patience: Duration,
) -> Result<super::Answer, Refusal> {
    let body = json!({"torch_empty_cache": true});
    let answer = session.post(CONTINUE, Some(&body), key, patience)?;
    match answer.status {
        404 => Err(Refusal::TooOld("this SGLang has no /continue_generation")),
        _ if answer.is_success() => Ok(answer),
        _ => Err(refused(CONTINUE, &answer, key)),
    }
}

fn refused(path: &str, answer: &super::Answer, key: Option<&EngineKey>) -> Refusal {
    Refusal::of(path, answer, key.is_some(), CONTROL_KEY)
}

/// Has one that was paused go on.
///
/// # Errors
/// It did not say that it does.
pub fn go_on(session: &Session, keys: &KeyRing) -> Result<(), Refusal> {
    let key = match keys.control() {
        Ok(key) => key,
        Err(NoKey::Unreadable(error)) => return Err(error.into()),
        // It may need none. Where it does, it says so.
        Err(NoKey::Unproven(_)) => None,
    };
    proceed(session, key.as_ref(), PAUSING_TAKES).map(drop)
}
