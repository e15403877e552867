"""What two Chinese texts may differ in and still ask for the same.

Chinese is written without spaces, so nothing is cut into words: a phrase is replaced by another of
one meaning, or by nothing where it carries none, and each character that is left counts.
"""

from __future__ import annotations

import re

_SYNONYMS = """
    怎么 如何 怎样 怎么样才能 怎样才能 如何才能 怎么才能
    什么 啥 哪些 有哪些 是什么 有什么 什么是
    为什么 为何 为啥 因何
    哪里 哪儿 何处 什么地方
    多少钱 什么价格 价格是多少 价钱是多少 要花多少钱 需要多少钱
    什么时候 何时 什么时间 几时
    多久 多长时间
    可以 能 能够 可不可以 能不能 是否可以 能否
    是不是 是否
    使用 利用 采用 运用
    提供 给出
    创建 新建 建立
    需要 必须 须要
    因为 由于
    但是 但 可是 不过
    并且 而且
    电脑 计算机
    手机 移动电话
    自行车 单车 脚踏车
    番茄 西红柿
    土豆 马铃薯
    医生 大夫
    图片 图像
    电影 影片
    公司 企业
    花费 费用
    原因 缘由
    区别 差别 差异 不同之处
    方法 办法 方式
    例子 示例
    立即 马上 立刻
    没有 没
"""
"""Each line one meaning, no phrase in two lines."""

_LIGHT = """
    请问一下 请问 请告诉我 告诉我 能告诉我 能否告诉我 能不能告诉我 可以告诉我 你能告诉我 麻烦告诉我
    请你 请 麻烦 一下
    我想知道 我想问一下 我想问 想问一下 想知道 帮我解释 谢谢
    的 了 吗 呢 吧 啊 呀 嘛 呗 地 得 着 是 到底 究竟 一般 通常
"""
"""May stand on one side alone."""


def _phrases() -> dict[str, str]:
    found = dict.fromkeys(_LIGHT.split(), "")
    for number, line in enumerate(filter(None, map(str.strip, _SYNONYMS.splitlines()))):
        # Characters of the private use area: in no text of a client's that anybody can read.
        found |= dict.fromkeys(line.split(), chr(0xE000 + number))
    return found


_PHRASES = _phrases()
_PHRASE = re.compile("|".join(sorted(_PHRASES, key=len, reverse=True)))


def plain(text: str) -> str:
    """The text with each phrase in the place of which another may stand replaced by a sign."""
    return _PHRASE.sub(lambda found: _PHRASES[found[0]], text)
