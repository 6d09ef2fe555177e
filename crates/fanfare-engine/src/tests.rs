//! The engine against a small cluster that follows the protocol: scripted cases, and random ones with faults.

mod cases;
mod chaos;
mod condemned;
mod connections;
mod faults;
mod give_way;
mod plane;
mod proof;
mod retire;
mod room;
mod traffic;
mod waited;
mod world;
