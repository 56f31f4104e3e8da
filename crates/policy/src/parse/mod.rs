//! Text into typed facts: `/proc` files, answers of servers. Pure.

pub mod alertmanager;
pub mod answer;
pub mod container;
pub mod docker_client;
pub mod exposition;
pub mod file_sd;
pub mod gguf;
pub mod gpu;
pub mod header_lines;
pub mod held_object;
pub mod model_config;
pub mod model_files;
pub mod proc;
pub mod process;
pub mod prometheus_answer;
pub mod ray;
pub mod utmp;
pub mod weight_files;
pub mod weight_index;
