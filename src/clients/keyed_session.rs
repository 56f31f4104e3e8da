//! Calls to one engine, with its keys.

use std::cell::RefCell;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::{CallError, ClientSession, EngineKey, KeyError, KeyRing, NoKey};
use crate::engines::{EmptyingRefusal, EngineCalls, WhichKey};
use crate::parse::answer::HttpResponse;

/// A connection to an engine, and its keys. A peer not proven to be the engine gets requests
/// without the key.
#[derive(Debug)]
pub struct KeyedSession {
    session: ClientSession,
    ring: KeyRing,
    api: RefCell<Option<EngineKey>>,
    control: RefCell<Option<EngineKey>>,
    withheld: RefCell<Option<String>>,
}

impl KeyedSession {
    /// No key has been read yet.
    pub fn new(session: ClientSession, ring: KeyRing) -> Self {
        let (api, control, withheld) = Default::default();
        Self { session, ring, api, control, withheld }
    }

    /// Why an existing key was not sent.
    pub fn withheld(self) -> Option<String> {
        self.withheld.into_inner()
    }

    fn read(&self, which: WhichKey) -> &RefCell<Option<EngineKey>> {
        match which {
            WhichKey::Api => &self.api,
            WhichKey::Control => &self.control,
        }
    }

    fn with_key<T>(
        &self,
        which: Option<WhichKey>,
        call: impl FnOnce(Option<&EngineKey>) -> Result<T, CallError>,
    ) -> Result<T, EmptyingRefusal> {
        let key = which.map(|which| self.read(which).borrow());
        Ok(call(key.as_ref().and_then(|key| key.as_ref()))?)
    }
}

impl EngineCalls for KeyedSession {
    fn key(&self, which: WhichKey) -> Result<Option<WhichKey>, EmptyingRefusal> {
        let key = match which {
            WhichKey::Api => self.ring.api(),
            WhichKey::Control => self.ring.control(),
        };
        let key = match key {
            Ok(key) => key,
            Err(NoKey::Unreadable(error)) => return Err(error.into()),
            Err(NoKey::Unproven(why)) => {
                *self.withheld.borrow_mut() = Some(why);
                None
            }
        };
        let known = key.as_ref().map(|_| which);
        *self.read(which).borrow_mut() = key;
        Ok(known)
    }

    fn get(
        &self,
        path: &str,
        key: Option<WhichKey>,
        patience: Duration,
    ) -> Result<HttpResponse, EmptyingRefusal> {
        self.with_key(key, |key| self.session.get(path, key, patience))
    }

    fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        key: Option<WhichKey>,
        patience: Duration,
    ) -> Result<HttpResponse, EmptyingRefusal> {
        self.with_key(key, |key| self.session.post(path, body, key, patience))
    }

    fn wait(&self, time: Duration) {
        sleep(time);
    }
}

impl From<KeyError> for EmptyingRefusal {
    fn from(error: KeyError) -> Self {
        Self::Unanswered(error.to_string())
    }
}

impl From<CallError> for EmptyingRefusal {
    fn from(error: CallError) -> Self {
        Self::Unanswered(error.to_string())
    }
}
