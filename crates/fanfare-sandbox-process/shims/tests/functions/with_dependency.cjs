const word = require('fanfare_dep_node');

exports.handler = () => word;
