//! Reads the kernel settings and the memory of this node, and writes settings.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context;

use crate::model::Sysctl;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::parse::proc::single_number;
use crate::parse::proc::zoneinfo::{Zone, Zoneinfo};
use crate::tune::{CurrentMemory, HugePages, SettingState, TuneNode, is_on};

/// Where procfs and sysfs are.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeFiles<'a> {
    pub(super) procfs: &'a Path,
    pub(super) sysfs: &'a Path,
}

impl NodeFiles<'_> {
    pub(super) fn node(&self) -> anyhow::Result<TuneNode> {
        let names = [
            self.sysfs.join("class/dmi/id/product_name"),
            self.sysfs.join("firmware/devicetree/base/model"),
            self.procfs.join("device-tree/model"),
        ];
        // A machine whose firmware has no name is identified by its size.
        let mut found = names.iter().filter_map(|path| fs::read(path).ok());
        let model = found.next().unwrap_or_default();
        let model = String::from_utf8_lossy(&model);
        let model = model.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
        Ok(TuneNode { model, memory_bytes: self.memory()?.total_bytes })
    }

    pub(super) fn memory(&self) -> anyhow::Result<CurrentMemory> {
        let path = self.procfs.join("meminfo");
        let read = || -> anyhow::Result<CurrentMemory> {
            let meminfo = Meminfo::parse(&fs::read(&path)?)?;
            let field = |field| meminfo.get(field).value();
            let bytes = |name| field(name).with_context(|| format!("it has no {name:?}"));
            let cache = [MeminfoField::ActiveFile, MeminfoField::InactiveFile];
            Ok(CurrentMemory {
                total_bytes: bytes(MeminfoField::MemTotal)?,
                available_bytes: bytes(MeminfoField::MemAvailable)?,
                cache_bytes: cache.into_iter().filter_map(field).sum(),
            })
        };
        read().with_context(|| {
            format!("cannot read {}: check that --path.procfs is a procfs", path.display())
        })
    }

    /// `None`: they are off, or the kernel has none.
    pub(super) fn huge_pages(&self, memory: &CurrentMemory) -> Option<HugePages> {
        let folder = self.sysfs.join("kernel/mm/transparent_hugepage");
        is_on(&fs::read_to_string(folder.join("enabled")).ok()?).then_some(())?;
        let bytes = single_number(&fs::read(folder.join("hpage_pmd_size")).ok()?).ok()?;
        let mut zoneinfo = Zoneinfo::default();
        zoneinfo.parse(&fs::read(self.procfs.join("zoneinfo")).ok()?).ok()?;
        let of_users = |zone: &&Zone| {
            zone.present.value().is_some_and(|pages| pages > 0)
                && !["Movable", "Device"].contains(&zone.name.as_str())
        };
        let zones = zoneinfo.zones().filter(of_users).count() as u64;
        Some(HugePages { bytes, zones, total_bytes: memory.total_bytes })
    }

    pub(super) fn present(&self, sysctl: Sysctl) -> anyhow::Result<SettingState> {
        if let Some(in_bytes) = sysctl.in_bytes()
            && self.number(in_bytes)?.is_some_and(|bytes| bytes > 0)
        {
            return Ok(SettingState::InBytes);
        }
        Ok(match self.number(&sysctl.path())? {
            Some(value) => SettingState::Value(u32::try_from(value).unwrap_or(u32::MAX)),
            None => SettingState::Missing,
        })
    }

    fn number(&self, name: &str) -> anyhow::Result<Option<u64>> {
        let path = self.procfs.join("sys").join(name);
        match fs::read(&path) {
            Ok(text) => {
                let number = single_number(&text);
                number.map(Some).with_context(|| format!("{} is not a number", path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Sets a value, and reads it back.
    pub(super) fn set(&self, sysctl: Sysctl, value: u32) -> Result<(), String> {
        let path = self.procfs.join("sys").join(sysctl.path());
        let written = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()));
        written.map_err(|error| {
            format!("cannot set {sysctl} to {value}: {error}{}", advice(&error))
        })?;
        match self.present(sysctl) {
            Ok(SettingState::Value(now)) if now == value => Ok(()),
            _ => Err(format!("{sysctl} was set to {value}, but reads back another value")),
        }
    }
}

/// The remedy for an error.
pub(super) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => ": run it with sudo, on the host and not in a container",
        ErrorKind::ReadOnlyFilesystem => ": the file system is read-only, as in a container",
        ErrorKind::InvalidInput => ": this kernel rejects the value",
        _ => "",
    }
}
