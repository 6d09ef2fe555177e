require('no-such-module');
